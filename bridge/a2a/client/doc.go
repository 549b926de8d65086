// Package client calls remote A2A agents over the JSON-RPC and HTTP+JSON bindings of A2A 1.0 and 0.3. Params and results of 1.0 pass
// byte for byte; those of 0.3 are converted.
//
// Sources: A2A 1.0.1 §3.6, §8.3, §9, §11.
package client
