// Package localnet implements lmosd demo and lmosd testnet, which run meshes of local processes. Their nodes and agents are
// processes of this program.
package localnet
