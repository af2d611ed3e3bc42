// oidc-provider as an identity provider for tests.
//
//   node provider.mjs NAME CERTIFICATE KEY [PAGE]
//
// Browsers are sent back to PAGE for the client `strongroom-page`.
//
// Listens on a free port of 127.0.0.1 and prints {"issuer": …}. Lines on stdin change what it says,
// each answered by {"ok": …}; it ends when stdin does.
//
//   groups USER GROUP,GROUP     the groups of somebody from now on

import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { createInterface } from 'node:readline';

import Provider from 'oidc-provider';

const [name, certificate, key, page] = process.argv.slice(2);

// Everybody signs in with any password: what is tried is what comes after.
const people = new Map([
    ['alice', ['ops', 'staff']],
    ['bob', ['guests']],
]);

const jwk = (type, options, more) => ({
    ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }),
    use: 'sig',
    ...more,
});

// A program on the browser's machine: any port (RFC 8252).
const client = (id, more) => ({
    client_id: id,
    application_type: 'native',
    grant_types: ['authorization_code'],
    response_types: ['code'],
    redirect_uris: [`http://127.0.0.1/callback/${name}`],
    ...more,
});

const configuration = {
    clients: [
        client('strongroom', {
            client_secret: 'a secret: with +signs',
            token_endpoint_auth_method: 'client_secret_basic',
            id_token_signed_response_alg: 'PS256',
        }),
        client('strongroom-public', {
            token_endpoint_auth_method: 'none',
            id_token_signed_response_alg: 'ES256',
        }),
        ...(page
            ? [
                  client('strongroom-page', {
                      application_type: 'web',
                      redirect_uris: [page],
                      token_endpoint_auth_method: 'none',
                      id_token_signed_response_alg: 'ES256',
                  }),
              ]
            : []),
    ],
    jwks: {
        keys: [
            jwk('rsa', { modulusLength: 2048 }, { kid: 'rsa' }),
            jwk('ec', { namedCurve: 'P-256' }, { kid: 'p256' }),
        ],
    },
    claims: { openid: ['sub'], profile: ['preferred_username'], groups: ['groups'] },
    scopes: ['openid', 'profile', 'groups'],
    // Claims are in the ID token of one provider, and at the UserInfo endpoint of the others.
    conformIdTokenClaims: name !== 'fat',
    pkce: { required: () => true },
    cookies: { keys: ['a key for tests'] },
    features: { devInteractions: { enabled: true } },
    findAccount: (_, id) => ({
        accountId: id,
        claims: () => ({ sub: id, preferred_username: id.split('/')[0], groups: people.get(id) ?? [] }),
    }),
};

const server = createServer({ cert: readFileSync(certificate), key: readFileSync(key) });
server.listen(0, '127.0.0.1', () => {
    const issuer = `https://127.0.0.1:${server.address().port}`;
    const provider = new Provider(issuer, configuration);
    server.on('request', provider.callback());
    console.log(JSON.stringify({ issuer }));
});

const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => {
    const [what, user, groups] = line.split(' ');
    if (what === 'groups') people.set(user, groups ? groups.split(',') : []);
    console.log(JSON.stringify({ ok: what === 'groups' }));
});
lines.on('close', () => process.exit(0));
