// Package netns runs tests in network namespaces of their own, on Linux.
package netns
