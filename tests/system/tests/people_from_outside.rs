//! People of a real identity provider (`oidc-provider`), and an emergency in which it is away, by
//! the command line: from the settings to the end of their sessions.

use serde_json::json;
use strongroom_system_tests::{Finished, Scratch, Serving};
use strongroom_test_peers::IdentityProvider;

/// A site that asks a provider.
struct Site<'test> {
    serving: Serving<'test>,
    scratch: &'test Scratch,
}

impl<'test> Site<'test> {
    fn new(scratch: &'test Scratch) -> Self {
        Self { serving: Serving::start_logging(scratch, "debug"), scratch }
    }

    fn provider(&self, name: &str) -> IdentityProvider {
        IdentityProvider::start(name, &self.scratch.path("."))
    }

    fn adds(&self, name: &str, provider: &IdentityProvider, client: &str) -> String {
        std::fs::write(self.scratch.path("client.secret"), format!("{}\n", IdentityProvider::CLIENT_SECRET))
            .unwrap();
        self.serving.runs(&format!(
            "access provider add {name} --issuer {} --client-id {client} --scope profile --scope groups --authorities {}",
            provider.issuer,
            provider.certificate.display()
        ))
    }

    /// Signs in with a browser: what the command says comes through a pipe, so nobody waits for
    /// longer than it takes.
    fn signs_in(&self, login: &str, browser: &str) -> Finished {
        let script = format!(
            "export STRONGROOM_HOME=\"$PWD/home\"; rm -f said; mkfifo said
             \"$STRONGROOM\" login {login} 2>said &
             exec 5<said
             read -r first <&5; echo \"$first\" >&2
             if read -r url <&5; then {browser} >came-back; fi
             cat <&5 >&2
             wait $!"
        );
        self.serving.strongroom.run_shell(&script)
    }
}

#[test]
fn people_of_an_identity_provider_have_the_roles_of_their_groups() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let serving = &site.serving;
    let mut corp = site.provider("corp");
    let added = site.adds("corp", &corp, "strongroom --client-secret-file client.secret --session 30m");
    assert!(
        added.contains("Its groups have no role yet. Next: strongroom role grant corp:GROUP ROLE"),
        "{added}"
    );
    let secrets = scratch.path("home/control/identity-providers");
    assert_eq!(std::fs::read_dir(secrets).unwrap().count(), 1);

    // Nobody comes in before a group has a role, and the reason is on record alone.
    let refused = site.signs_in("--provider corp", &corp.browser("alice", "")).failure();
    assert!(refused.contains("a user of corp is not signed in"), "{refused}");
    let log = serving.json("access log --by corp:alice");
    let last = log["items"].as_array().unwrap().last().unwrap();
    assert_eq!(last["kind"], "sign_in_refused");
    assert!(
        last["message"].as_str().unwrap().contains("none of the groups of corp:alice has a role"),
        "{log}"
    );

    let granted = serving.runs("role grant corp:ops operator");
    assert_eq!(granted.trim_end(), "group ops of corp has role operator for the whole site");
    let login = "--provider corp --token-file alice.session";
    let signed = site.signs_in(login, &corp.browser("alice", "")).success();
    assert!(signed.contains("corp:alice is signed in at https://"), "{signed}");
    let alice = |arguments: &str| format!("{arguments} --api-token-file alice.session");
    let me = serving.json(&alice("user show"));
    assert_eq!((&me["name"], &me["grants"][0]["role"]), (&json!("corp:alice"), &json!("operator")));
    serving.runs(&alice("vm list"));
    assert!(serving.is_refused(&alice("folder create x")).contains("do not permit"));
    let review = serving.runs("access review");
    for part in ["corp:ops", "corp:alice", corp.issuer.as_str()] {
        assert!(review.contains(part), "{part}: {review}");
    }

    // What the browser brought is of no use to anyone who finds it.
    let came_back = std::fs::read_to_string(scratch.path("came-back")).unwrap();
    let query = came_back.trim().split_once('?').unwrap().1;
    let value = |name: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}="))).unwrap().to_owned()
    };
    let again = json!({ "flow": "guessed", "state": value("state"), "code": value("code") });
    std::fs::write(scratch.path("again"), again.to_string()).unwrap();
    let curl = format!(
        "curl --silent --cacert home/control/api.crt -H 'content-type: application/json' -d @again {}/v1/provider-sessions",
        serving.api_url()
    );
    let answer = serving.strongroom.peer("sh", &["-c", &curl]);
    assert!(answer.contains("\"unauthorized\""), "{answer}");

    // Somebody without a role, and somebody who cancels.
    for user in ["bob", "-"] {
        let refused = site.signs_in("--provider corp", &corp.browser(user, "")).failure();
        assert!(refused.contains("not signed in") || refused.contains("access_denied"), "{user}: {refused}");
    }

    // The provider is asked again with the next session.
    corp.set_groups("alice", &["staff"]);
    serving.runs(&alice("vm list"));
    let refused = site.signs_in("--provider corp --token-file next.session", &corp.browser("alice", ""));
    assert!(refused.failure().contains("not signed in"));
    // A role that is revoked is gone at once, and so is a session whose provider is.
    serving.runs("role revoke corp:ops operator");
    assert_eq!(serving.json(&alice("vm list"))["items"], json!([]));
    serving.runs("access provider remove corp");
    let ended = serving.is_refused(&alice("user show"));
    assert!(ended.contains("`strongroom login --provider corp` begins another"), "{ended}");
    let secrets = scratch.path("home/control/identity-providers");
    assert_eq!(std::fs::read_dir(secrets).unwrap().count(), 0);
}

#[test]
fn a_public_client_signs_in_with_another_providers_groups_apart() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let serving = &site.serving;
    // All of its claims are in the ID token, which is signed with ES256.
    let (fat, thin) = (site.provider("fat"), site.provider("thin"));
    site.adds("fat", &fat, "strongroom-public");
    site.adds("thin", &thin, "strongroom-public");
    serving.runs("role grant fat:ops administrator");
    serving.runs("role grant thin:ops auditor");
    for (name, provider) in [("fat", &fat), ("thin", &thin)] {
        let login = format!("--provider {name} --token-file {name}.session");
        site.signs_in(&login, &provider.browser("alice", "")).success();
    }
    serving.runs("folder create tenant1 --api-token-file fat.session");
    assert!(serving.is_refused("folder create tenant2 --api-token-file thin.session").contains("roles"));
    // The secret of a client that has none.
    std::fs::write(scratch.path("wrong.secret"), "wrong").unwrap();
    serving.runs("access provider secret thin --client-secret-file wrong.secret");
    let refused = site.signs_in("--provider thin", &thin.browser("alice", "")).failure();
    assert!(refused.contains("identity provider thin cannot be used"), "{refused}");
    assert!(!refused.contains("wrong.secret"), "{refused}");
    // One that is not the issuer that was named.
    let wrong = serving.is_refused(&format!(
        "access provider add other --issuer {}/ --client-id strongroom-public --authorities {}",
        fat.issuer,
        fat.certificate.display()
    ));
    assert!(wrong.contains("another issuer"), "{wrong}");
}

#[test]
fn an_emergency_credential_lets_in_once_when_the_provider_is_away() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let serving = &site.serving;
    let corp = site.provider("corp");
    site.adds("corp", &corp, "strongroom-public");
    serving.runs("role grant corp:ops administrator");
    let secret = serving.runs("access emergency create envelope1");
    std::fs::write(scratch.path("envelope1"), secret.to_lowercase()).unwrap();
    drop(corp);
    let refused = site.signs_in("--provider corp", "false").failure();
    assert!(refused.contains("identity provider corp cannot be used"), "{refused}");
    assert!(serving.is_refused("login --emergency --emergency-fd 3 3<envelope1").contains("--reason"));
    let login = "login --emergency --reason 'corp is away' --token-file emergency.session --emergency-fd 3 3<envelope1";
    let signed = serving.runs(login);
    assert!(signed.contains("emergency:envelope1 is signed in"), "{signed}");
    serving.runs("folder create rescue --api-token-file emergency.session");
    let alarms = serving.runs("event alarms");
    assert!(alarms.contains("emergency credential envelope1 was used from 127.0.0.1"), "{alarms}");
    assert!(serving.is_refused(login).contains("wrong or was used already"));
    let review = serving.runs("access review");
    assert!(review.contains("NOT ACKNOWLEDGED") && review.contains("corp is away"), "{review}");
    let own = "access emergency acknowledge envelope1 --api-token-file emergency.session";
    assert!(serving.is_refused(own).contains("emergency session"));
    let log = serving.runs("access log --by emergency:envelope1");
    assert!(log.contains("folder rescue was made"), "{log}");
    serving.runs("access emergency acknowledge envelope1");
    serving.runs("access emergency revoke envelope1");
    let ended = serving.is_refused("vm list --api-token-file emergency.session");
    assert!(ended.contains("was ended"), "{ended}");
}
