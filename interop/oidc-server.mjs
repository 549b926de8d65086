// An OAuth authorization server (node-oidc-provider) that issues access tokens as JWTs for a resource (RFC 8707, RFC 9068).
//   node oidc-server.mjs PORT KID ALG
// Port 0 selects a free one. It prints its issuer when it listens, and ends with its standard input. Each start makes a new signing key.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const [port, kid, alg] = process.argv.slice(2);
const pair = alg === 'ES256' ? generateKeyPairSync('ec', { namedCurve: 'P-256' })
  : alg === 'EdDSA' ? generateKeyPairSync('ed25519') : generateKeyPairSync('rsa', { modulusLength: 2048 });
const key = { ...pair.privateKey.export({ format: 'jwk' }), kid, alg, use: 'sig' };
process.stdin.on('end', () => process.exit(0)).resume();

let answer;
const server = createServer((request, response) => answer(request, response));
server.listen(Number(port), '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const client = (id) => ({ client_id: id, client_secret: `secret of ${id}`, grant_types: ['client_credentials'], redirect_uris: [],
    response_types: [], id_token_signed_response_alg: alg });
  const provider = new Provider(issuer, {
    jwks: { keys: [key] },
    clients: [client('crm'), client('reporter')],
    clientDefaults: { token_endpoint_auth_method: 'client_secret_post' },
    enabledJWA: { idTokenSigningAlgValues: [alg] },
    scopes: ['lmos.call', 'lmos.find'],
    // A claim with the groups of the client, as directories of companies have them.
    extraTokenClaims: (_, token) => ({ groups: token.clientId === 'crm' ? ['adjusters', 'staff'] : ['staff'] }),
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource) => ({ scope: 'lmos.call lmos.find', audience: resource, accessTokenFormat: 'jwt',
          accessTokenTTL: 300, jwt: { sign: { alg } } }),
      },
    },
  });
  answer = provider.callback();
  console.log(JSON.stringify(issuer));
});
