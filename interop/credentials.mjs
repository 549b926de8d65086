// Signs credentials of the data model 1.1 with the suites of another project, from keys that are always the same:
//   node credentials.mjs FOLDER SUBJECT ISSUED EXPIRES
// FOLDER/NAME.json is the credential of a suite. The tests of did/aries keep those that this made once.
import { createPrivateKey, createPublicKey, sign, createHash } from 'node:crypto'
import { readFileSync, writeFileSync, mkdirSync } from 'node:fs'
import * as vc from '@digitalbazaar/vc'
import { Ed25519Signature2018 } from '@digitalbazaar/ed25519-signature-2018'
import { Ed25519Signature2020 } from '@digitalbazaar/ed25519-signature-2020'
import { Ed25519VerificationKey2018 } from '@digitalbazaar/ed25519-verification-key-2018'
import { Ed25519VerificationKey2020 } from '@digitalbazaar/ed25519-verification-key-2020'
import { JwsLinkedDataSignature } from '@digitalbazaar/jws-linked-data-signature'
import * as credentials from '@digitalbazaar/credentials-context'
import * as suite2018 from 'ed25519-signature-2018-context'
import * as suite2020 from 'ed25519-signature-2020-context'
import * as security from '@digitalbazaar/security-context'

const [folder, subject, issued, expires] = process.argv.slice(2)
mkdirSync(folder, { recursive: true })

const roles = 'https://lmosd.dev/ns/credentials/roles/v1'
const jws = 'https://w3id.org/security/suites/jws-2020/v1'
const known = new Map([...credentials.contexts, ...suite2018.contexts, ...suite2020.contexts, ...security.contexts])
known.set(roles, JSON.parse(readFileSync(new URL('../did/aries/contexts/roles-v1.jsonld', import.meta.url))))
// The terms of a proof, as https://w3id.org/security/suites/jws-2020/v1 defines them.
const proofTerms = structuredClone(suite2018.contexts.values().next().value['@context'].Ed25519Signature2018['@context'])
known.set(jws, { '@context': { JsonWebSignature2020: { '@id': 'https://w3id.org/security#JsonWebSignature2020', '@context': proofTerms } } })

async function documentLoader(url) {
  const document = known.get(url)
  if (!document) throw new Error('unknown context ' + url)
  return { contextUrl: null, documentUrl: url, document }
}

function base58(bytes) {
  const alphabet = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz'
  let n = BigInt('0x' + Buffer.from(bytes).toString('hex')), out = ''
  for (; n > 0n; n /= 58n) out = alphabet[Number(n % 58n)] + out
  return 'z' + out
}

const seed = text => createHash('sha256').update(text).digest()

// ecKey returns the private key of a curve, from a number that is always the same, and its did:key.
function ecKey(name, namedCurve, size, codec) {
  const der = { 'P-256': '3041020100301306072a8648ce3d020106082a8648ce3d030107042730250201010420',
    'P-384': '304e020100301006072a8648ce3d020106052b81040022043730350201010430' }[namedCurve]
  const d = Buffer.concat([Buffer.alloc(size - 32, 1), seed(name)])
  const key = createPrivateKey({ key: Buffer.concat([Buffer.from(der, 'hex'), d]), format: 'der', type: 'pkcs8' })
  const { x, y } = createPublicKey(key).export({ format: 'jwk' })
  const point = Buffer.concat([Buffer.from([2 | (Buffer.from(y, 'base64url').at(-1) & 1)]), Buffer.from(x, 'base64url')])
  return { key, body: base58(Buffer.concat([Buffer.from(codec), point])) }
}

// jwsSuite signs as JsonWebSignature2020.
function jwsSuite(id, alg, signer) {
  const suite = new JwsLinkedDataSignature({ type: 'JsonWebSignature2020', alg, signer: { id, sign: async ({ data }) => signer(data) },
    contextUrl: jws, date: issued })
  suite.verificationMethod = id
  return suite
}

async function issue(name, context, issuer, suite) {
  const credential = {
    '@context': ['https://www.w3.org/2018/credentials/v1', ...context, roles],
    id: 'urn:uuid:5a0bdb1c-6c0e-4d5a-8e7c-0a5f4c7d2b11', type: ['VerifiableCredential', 'RoleCredential'], issuer,
    issuanceDate: issued, expirationDate: expires, credentialSubject: { id: subject, roles: ['adjuster', 'admin'] },
  }
  const signed = await vc.issue({ credential, suite, documentLoader, now: new Date(Date.parse(issued) + 1000) })
  writeFileSync(`${folder}/${name}.json`, JSON.stringify(signed, null, 2) + '\n')
}

const key2020 = await Ed25519VerificationKey2020.generate({ seed: seed('issuer') })
const body = key2020.fingerprint(), issuer = 'did:key:' + body, id = issuer + '#' + body
key2020.controller = issuer
key2020.id = id
const key2018 = await Ed25519VerificationKey2018.generate({ seed: seed('issuer'), controller: issuer, id })
const context2020 = suite2020.contexts.keys().next().value

await issue('ed25519-2018', [], issuer, new Ed25519Signature2018({ key: key2018, date: issued }))
await issue('ed25519-2020', [context2020], issuer, new Ed25519Signature2020({ key: key2020, date: issued }))
await issue('jws-2020-ed25519', [jws], issuer, jwsSuite(id, 'EdDSA', data => key2020.signer().sign({ data })))
for (const [name, curve, size, codec, alg, hash] of [['jws-2020-p256', 'P-256', 32, [0x80, 0x24], 'ES256', 'sha256'],
  ['jws-2020-p384', 'P-384', 48, [0x81, 0x24], 'ES384', 'sha384']]) {
  const { key, body } = ecKey(name, curve, size, codec)
  await issue(name, [jws], 'did:key:' + body, jwsSuite(`did:key:${body}#${body}`, alg,
    data => sign(hash, data, { key, dsaEncoding: 'ieee-p1363' })))
}
console.log('{}')
