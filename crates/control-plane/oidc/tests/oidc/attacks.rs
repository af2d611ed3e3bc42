//! What a provider, or somebody between, says and should not; and that what is right is taken.

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use strongroom_control::identity::{
    AuthorizationAnswer, AuthorizationRequest, Identity, IdentityProviders, NotIdentified,
};
use strongroom_control::records::IdentityProviderRecord;
use strongroom_oidc::Providers;

use crate::provider::{CLIENT, Provider, Signer, base64, message, now};

const NONCE: &str = "n-0S6_WzA2Mj";
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

const REQUEST: AuthorizationRequest<'_> = AuthorizationRequest {
    redirect: "http://127.0.0.1:4711/callback/corp",
    state: "state",
    nonce: NONCE,
    verifier: VERIFIER,
};

/// A client of a provider.
struct Site {
    home: tempfile::TempDir,
    providers: Providers,
    record: IdentityProviderRecord,
}

impl Site {
    fn of(provider: &Provider) -> Self {
        let home = tempfile::tempdir().unwrap();
        Self { providers: Providers::of(home.path()), record: provider.record(), home }
    }

    fn identify(&self, issuer: Option<&str>) -> Result<Identity, NotIdentified> {
        self.providers
            .identify(&self.record, &AuthorizationAnswer { request: REQUEST, code: "the code", issuer })
    }
}

fn expect_refusal(outcome: Result<Identity, NotIdentified>, of: &str) -> String {
    match outcome {
        Err(NotIdentified::Refused(reason)) => reason,
        other => panic!("{of}: {other:?}"),
    }
}

fn expect_unavailable<T: std::fmt::Debug>(outcome: Result<T, NotIdentified>, of: &str) -> String {
    match outcome {
        Err(NotIdentified::Unavailable(reason)) => reason,
        other => panic!("{of}: {other:?}"),
    }
}

/// The claims with some of them in the place of the right ones; `null` takes one away.
fn with(claims: &Value, others: &Value) -> Value {
    let mut claims = claims.clone();
    for (name, value) in others.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

#[test]
fn each_algorithm_that_is_accepted_identifies() {
    let provider = Provider::start();
    let signers = [
        ("RS256", Signer::rsa()),
        ("PS256", Signer::rsa()),
        ("ES256", Signer::p256()),
        ("EdDSA", Signer::ed25519()),
    ];
    provider.says.lock().keys =
        signers.iter().map(|(algorithm, signer)| signer.jwk(&format!("k-{algorithm}"))).collect();
    let site = Site::of(&provider);
    site.providers.check(&site.record).unwrap();
    for (algorithm, signer) in &signers {
        let header = json!({ "alg": algorithm, "kid": format!("k-{algorithm}") });
        provider.says.lock().id_token = signer.token(&header, &provider.claims(NONCE));
        let identity = site.identify(None).unwrap();
        let groups = vec!["ops".to_owned(), "/Team A".to_owned()];
        assert_eq!(identity, Identity { subject: "4711".to_owned(), user: "alice".to_owned(), groups });
    }
    let sent = provider.got.lock().iter().find(|got| got.path == "/token").unwrap().clone();
    for part in [
        "grant_type=authorization_code",
        "code=the%20code",
        "redirect_uri=http%3A%2F%2F127.0.0.1%3A4711%2Fcallback%2Fcorp",
        &format!("code_verifier={VERIFIER}"),
        "client_id=strong%20room",
    ] {
        assert!(sent.body.contains(part), "{part}: {}", sent.body);
    }
    assert!(!sent.head.to_lowercase().contains("authorization:"));
}

#[test]
fn a_request_has_the_challenge_of_the_verifier() {
    let provider = Provider::start();
    let site = Site::of(&provider);
    let url = site.providers.authorization_url(&site.record, &REQUEST).unwrap();
    assert!(url.starts_with(&format!("{}/auth?tenant=7&response_type=code&", provider.issuer)), "{url}");
    // The example of RFC 7636, appendix B.
    for part in [
        "code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
        "code_challenge_method=S256",
        "client_id=strong%20room",
        "scope=openid%20groups",
        "state=state",
        "nonce=n-0S6_WzA2Mj",
    ] {
        assert!(url.contains(part), "{part}: {url}");
    }
    assert!(!url.contains(VERIFIER));
}

#[test]
fn a_token_with_a_wrong_claim_is_refused() {
    let provider = Provider::start();
    let signer = Signer::p256();
    provider.says.lock().keys = vec![signer.jwk("k")];
    let (site, header, right) =
        (Site::of(&provider), json!({ "alg": "ES256", "kid": "k" }), provider.claims(NONCE));
    let issuer = provider.issuer.clone();
    let wrong = [
        json!({ "aud": "another" }),
        json!({ "aud": null }),
        json!({ "aud": [] }),
        json!({ "aud": [CLIENT, "another"] }),
        json!({ "aud": [CLIENT, "another"], "azp": "another" }),
        json!({ "azp": "another" }),
        json!({ "azp": null, "aud": { "client": CLIENT } }),
        json!({ "iss": "https://127.0.0.1" }),
        json!({ "iss": format!("{issuer}/") }),
        json!({ "iss": [issuer, "https://evil.example"] }),
        json!({ "iss": null }),
        json!({ "exp": now() - 120 }),
        json!({ "exp": null }),
        json!({ "exp": "tomorrow" }),
        json!({ "iat": now() + 600 }),
        json!({ "iat": now() - 3600 }),
        json!({ "iat": null }),
        json!({ "iat": "now" }),
        json!({ "nbf": now() + 600 }),
        json!({ "nonce": "of another sign-in" }),
        json!({ "nonce": null }),
        json!({ "nonce": "" }),
        json!({ "sub": null }),
        json!({ "sub": "" }),
        json!({ "sub": 4711 }),
        json!({ "sub": "4".repeat(256) }),
    ];
    for others in &wrong {
        provider.says.lock().id_token = signer.token(&header, &with(&right, others));
        expect_refusal(site.identify(None), &others.to_string());
    }
    // So that it is the claims that were refused.
    let several = with(&right, &json!({ "aud": [CLIENT, "another"], "azp": CLIENT }));
    for claims in [&right, &several] {
        provider.says.lock().id_token = signer.token(&header, claims);
        assert!(site.identify(None).is_ok());
    }
}

#[test]
fn a_token_without_the_providers_signature_is_refused() {
    let provider = Provider::start();
    let (rsa, other, p256) = (Signer::rsa(), Signer::rsa(), Signer::p256());
    let shared = b"everybody can read this secret";
    provider.says.lock().keys = vec![
        rsa.jwk("rsa"),
        other.jwk("other"),
        p256.jwk("p256"),
        json!({ "kty": "oct", "kid": "oct", "k": base64(shared), "alg": "HS256" }),
        with(&other.jwk("enc"), &json!({ "use": "enc" })),
        with(&other.jwk("ps"), &json!({ "alg": "PS256" })),
    ];
    let (site, claims) = (Site::of(&provider), provider.claims(NONCE));
    let right = rsa.token(&json!({ "alg": "RS256", "kid": "rsa" }), &claims);
    let unsigned = |header: &Value| format!("{}.", message(header, &claims));
    let by_hmac = |kid: &str, secret: &[u8]| {
        let message = message(&json!({ "alg": "HS256", "kid": kid }), &claims);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", base64(tag.as_ref()))
    };
    let modulus = rsa.jwk("rsa")["n"].as_str().unwrap().to_owned();
    let (head, signature) = right.rsplit_once('.').unwrap();
    let forged = message(&json!({ "alg": "RS256", "kid": "rsa" }), &with(&claims, &json!({ "sub": "1" })));
    let wrong = [
        ("none", unsigned(&json!({ "alg": "none" }))),
        ("None", unsigned(&json!({ "alg": "None", "kid": "rsa" }))),
        ("no algorithm", unsigned(&json!({ "kid": "rsa" }))),
        ("the public key as a secret", by_hmac("rsa", &rsa.public_der())),
        ("the modulus as a secret", by_hmac("rsa", modulus.as_bytes())),
        ("a secret in the key set", by_hmac("oct", shared)),
        ("another key", other.token(&json!({ "alg": "RS256", "kid": "rsa" }), &claims)),
        ("a key for encryption", other.token(&json!({ "alg": "RS256", "kid": "enc" }), &claims)),
        ("a key for PS256 alone", other.token(&json!({ "alg": "RS256", "kid": "ps" }), &claims)),
        ("a key of another kind", rsa.token(&json!({ "alg": "RS256", "kid": "p256" }), &claims)),
        ("a key that is not there", rsa.token(&json!({ "alg": "RS256", "kid": "gone" }), &claims)),
        ("no key named among several", rsa.token(&json!({ "alg": "RS256" }), &claims)),
        ("its own key", {
            let header = json!({ "alg": "RS256", "kid": "x", "jwk": other.jwk("x") });
            other.token(&header, &claims)
        }),
        (
            "what nobody understands",
            rsa.token(&json!({ "alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1 }), &claims),
        ),
        ("other claims", format!("{forged}.{signature}")),
        ("no signature", format!("{head}.")),
        ("two parts", head.to_owned()),
        ("nothing", String::new()),
        ("too much", format!("{right}{}", "A".repeat(70_000))),
    ];
    for (what, token) in wrong {
        provider.says.lock().id_token = token;
        expect_refusal(site.identify(None), what);
    }
    provider.says.lock().id_token = right;
    assert!(site.identify(None).is_ok());
}

#[test]
fn keys_that_change_are_read_again_but_not_all_the_time() {
    let provider = Provider::start();
    let (old, new) = (Signer::p256(), Signer::p256());
    provider.says.lock().keys = vec![old.jwk("old")];
    let (site, claims) = (Site::of(&provider), provider.claims(NONCE));
    provider.says.lock().id_token = old.token(&json!({ "alg": "ES256", "kid": "old" }), &claims);
    assert!(site.identify(None).is_ok());
    assert!(site.identify(None).is_ok());
    assert_eq!(provider.requests_to("/jwks"), 1);
    provider.says.lock().keys = vec![new.jwk("new")];
    provider.says.lock().id_token = new.token(&json!({ "alg": "ES256", "kid": "new" }), &claims);
    assert!(site.identify(None).is_ok());
    assert_eq!(provider.requests_to("/jwks"), 2);
    // The old key counts no more, and tokens that name keys that do not exist have nothing read.
    provider.says.lock().id_token = old.token(&json!({ "alg": "ES256", "kid": "old" }), &claims);
    for _ in 0..20 {
        expect_refusal(site.identify(None), "the old key");
    }
    assert_eq!(provider.requests_to("/jwks"), 2);
}

#[test]
fn a_discovery_document_that_leads_elsewhere_is_refused() {
    let victim = Provider::start();
    for wrong in [
        json!({ "issuer": victim.issuer }),
        json!({ "jwks_uri": "file:///etc/passwd" }),
        json!({ "jwks_uri": "http://127.0.0.1:80/jwks" }),
        json!({ "token_endpoint": "https://user@127.0.0.1/token" }),
        json!({ "userinfo_endpoint": "http://169.254.169.254/latest" }),
        json!({ "authorization_endpoint": "javascript:alert(1)" }),
        json!({ "code_challenge_methods_supported": ["plain"] }),
        json!({ "token_endpoint": 7 }),
    ] {
        let provider = Provider::start();
        provider.says.lock().discovery = wrong.clone();
        let site = Site::of(&provider);
        let of = wrong.to_string();
        expect_unavailable(site.providers.check(&site.record), &of);
        expect_unavailable(site.providers.authorization_url(&site.record, &REQUEST), &of);
        expect_unavailable(site.identify(None), &of);
        assert_eq!(provider.requests_to("/token"), 0);
    }
    assert!(victim.got.lock().is_empty());
}

#[test]
fn redirects_are_not_followed() {
    let victim = Provider::start();
    for to in ["file:///etc/passwd".to_owned(), format!("{}/jwks", victim.issuer)] {
        let redirect = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        for path in ["/.well-known/openid-configuration", "/jwks", "/token"] {
            let provider = Provider::start();
            let signer = Signer::p256();
            provider.says.lock().keys = vec![signer.jwk("k")];
            provider.says.lock().id_token =
                signer.token(&json!({ "alg": "ES256", "kid": "k" }), &provider.claims(NONCE));
            provider.says.lock().instead = vec![(path, redirect.clone())];
            // The site trusts the victim as well, so that nothing but the redirect is refused.
            let mut site = Site::of(&provider);
            site.record.authorities = Some(format!("{}{}", provider.pem, victim.pem).try_into().unwrap());
            let reason = expect_unavailable(site.identify(None), path);
            assert!(reason.contains("302"), "{reason}");
        }
    }
    assert!(victim.got.lock().is_empty());
}

#[test]
fn answers_without_end_are_cut_off() {
    for path in ["/.well-known/openid-configuration", "/jwks", "/token"] {
        let provider = Provider::start();
        let signer = Signer::p256();
        provider.says.lock().keys = vec![signer.jwk("k")];
        provider.says.lock().id_token =
            signer.token(&json!({ "alg": "ES256", "kid": "k" }), &provider.claims(NONCE));
        provider.says.lock().endless = Some(path);
        expect_unavailable(Site::of(&provider).identify(None), path);
        let sent = *provider.sent_bytes.lock();
        assert!(sent < 16 << 20, "{path}: {sent} bytes of 100 MiB were taken");
    }
}

#[test]
fn the_answer_of_another_provider_does_not_reach_the_token_endpoint() {
    let provider = Provider::start();
    let signer = Signer::p256();
    provider.says.lock().keys = vec![signer.jwk("k")];
    provider.says.lock().id_token =
        signer.token(&json!({ "alg": "ES256", "kid": "k" }), &provider.claims(NONCE));
    let site = Site::of(&provider);
    expect_refusal(site.identify(Some("https://honest.example")), "another issuer");
    assert_eq!(provider.requests_to("/token"), 0);
    assert!(site.identify(Some(&provider.issuer)).is_ok());
    // One that always names itself is not silent.
    let taken = provider.requests_to("/token");
    provider.says.lock().discovery = json!({ "authorization_response_iss_parameter_supported": true });
    expect_refusal(Site::of(&provider).identify(None), "no issuer");
    assert_eq!(provider.requests_to("/token"), taken);
}

#[test]
fn claims_may_come_from_user_info_if_they_are_of_the_same_one() {
    let provider = Provider::start();
    let signer = Signer::p256();
    provider.says.lock().keys = vec![signer.jwk("k")];
    let thin = with(&provider.claims(NONCE), &json!({ "groups": null }));
    provider.says.lock().id_token = signer.token(&json!({ "alg": "ES256", "kid": "k" }), &thin);
    let site = Site::of(&provider);
    for wrong in [
        json!({ "sub": "1", "groups": ["ops"] }),
        json!({ "groups": ["ops"] }),
        json!({ "sub": "4711" }),
        json!({ "sub": "4711", "groups": [7] }),
        json!({ "sub": "4711", "groups": { "ops": true } }),
    ] {
        provider.says.lock().user_info = wrong.clone();
        expect_refusal(site.identify(None), &wrong.to_string());
    }
    // What the token says comes first.
    provider.says.lock().user_info =
        json!({ "sub": "4711", "groups": "ops", "preferred_username": "mallory" });
    let identity = site.identify(None).unwrap();
    assert_eq!((identity.user.as_str(), identity.groups), ("alice", vec!["ops".to_owned()]));
}

#[test]
fn a_secret_goes_to_the_token_endpoint_alone_and_is_told_to_nobody() {
    let provider = Provider::start();
    let signer = Signer::p256();
    provider.says.lock().keys = vec![signer.jwk("k")];
    provider.says.lock().id_token =
        signer.token(&json!({ "alg": "ES256", "kid": "k" }), &provider.claims(NONCE));
    let mut site = Site::of(&provider);
    site.record.has_secret = true;
    expect_unavailable(site.identify(None), "no secret is there");
    assert_eq!(provider.requests_to("/token"), 0);
    site.providers.keep_secret(site.record.id, "s3cret:+").unwrap();
    let file = site.home.path().join(format!("identity-providers/{}.secret", site.record.id));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(site.identify(None).is_ok());
    // "strong%20room:s3cret%3A%2B", each part escaped (RFC 6749, 2.3.1).
    let basic = "Basic c3Ryb25nJTIwcm9vbTpzM2NyZXQlM0ElMkI=";
    let with_it: Vec<_> = provider
        .got
        .lock()
        .iter()
        .filter(|got| got.head.contains(basic))
        .map(|got| got.path.clone())
        .collect();
    assert_eq!(with_it, ["/token"]);
    provider.says.lock().instead = vec![(
        "/token",
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 26\r\n\r\n{\"error\":\"invalid_client\"}".to_owned(),
    )];
    let reason = expect_unavailable(site.identify(None), "a wrong secret");
    assert!(reason.contains("invalid_client") && !reason.contains("s3cret"), "{reason}");
    provider.says.lock().instead = vec![(
        "/token",
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 25\r\n\r\n{\"error\":\"invalid_grant\"}".to_owned(),
    )];
    expect_refusal(site.identify(None), "a code that was used");
    site.providers.forget_secret(site.record.id).unwrap();
    assert!(!file.exists());
}

#[test]
fn a_provider_that_is_away_is_not_asked_all_the_time() {
    let provider = Provider::start();
    provider.says.lock().discovery = json!({ "issuer": "https://elsewhere.example" });
    let site = Site::of(&provider);
    for _ in 0..20 {
        expect_unavailable(site.providers.authorization_url(&site.record, &REQUEST), "another issuer");
    }
    assert_eq!(provider.requests_to("/.well-known/openid-configuration"), 1);
}
