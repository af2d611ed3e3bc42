//! Clients that are admitted, and clients that are refused or disconnected.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_a_good_certificate_do_not_get_in() {
    let mut server = Running::start(ServerLimits::default()).await;
    let expired = server.authority.issue_until(2020);
    let foreign = Authority::new("theirs").issue();
    let forged = Authority::new("ours").issue();
    let strangers = [
        (None, "no certificates"),
        (Some(&expired), "certificate expired"),
        (Some(&foreign), "UnknownIssuer"),
        (Some(&forged), "BadSignature"),
    ];
    for (identity, complaint) in strangers {
        for version in rustls::ALL_VERSIONS {
            let tls = server.authority.client_config_of_versions(identity, &[version]);
            // A TLS 1.3 client learns of the refusal only after its own half of the handshake.
            if let Ok(mut client) = Client::connect(server.address, tls).await {
                assert!(client.discover_versions().await.is_err());
            }
            let (reason, peer) = server.refusal().await;
            assert!(reason.starts_with("Handshake(") && reason.contains(complaint), "{reason}");
            assert_eq!(peer, None);
        }
    }
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_tls_does_not_get_in() {
    let mut server = Running::start(ServerLimits::default()).await;
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&request(RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default())))
        .await
        .unwrap();
    assert!(server.refusal().await.0.starts_with("Handshake("));
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_the_service_does_not_admit_does_not_get_in() {
    let mut server =
        Running::start_without(ServerLimits::default(), Some(|client| client.fingerprint())).await;
    let mut client = server.connect().await;
    assert!(client.discover_versions().await.is_err());
    assert_eq!(server.refusal().await, ("NotAdmitted".to_owned(), Some(server.client.fingerprint())));
    server.handle.shut_down();
    within(server.run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connections_of_a_withdrawn_certificate_are_closed_and_no_others() {
    let mut server = Running::start(ServerLimits::default()).await;
    let withdrawn = server.authority.issue();
    let fingerprint = withdrawn.fingerprint();
    let tls = server.authority.client_config(Some(&withdrawn));
    let mut idle = Client::connect(server.address, tls.clone()).await.unwrap();
    idle.discover_versions().await.unwrap();
    let mut busy = Client::connect(server.address, tls).await.unwrap();
    busy.send(&request(RequestPayload::Query(QueryRequest::default()))).await.unwrap();
    within(server.started.recv()).await.unwrap();
    let mut other = server.connect().await;
    other.discover_versions().await.unwrap();

    assert_eq!(server.handle.close_peers(|peer| peer.fingerprint == fingerprint), 2);
    idle.closed().await;
    server.gate.notify_one();
    busy.closed().await;
    assert_eq!(
        server.refusal().await,
        ("Withdrawn".to_owned(), Some(fingerprint)),
        "the answer was not sent"
    );
    server.until_connections(1).await;
    other.discover_versions().await.unwrap();
    drop(other);
    server.serves_and_ends().await;
}
