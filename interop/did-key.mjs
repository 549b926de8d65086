// keyOf makes a JWK of a did:key (multibase base58btc, multicodec ed25519-pub).
export function keyOf(kid) {
  const alphabet = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz'
  let n = 0n
  for (const c of kid.split('#')[0].slice('did:key:z'.length)) n = n * 58n + BigInt(alphabet.indexOf(c))
  const bytes = Buffer.from(n.toString(16).padStart(68, '0'), 'hex')
  return { kty: 'OKP', crv: 'Ed25519', x: bytes.subarray(2).toString('base64url'), alg: 'EdDSA' }
}
