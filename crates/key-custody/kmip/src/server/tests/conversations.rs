//! Requests and their answers, the server's shutdown, and its new certificate.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_over_tls_1_2_and_1_3() {
    let server = Running::start(ServerLimits::default()).await;
    for (offered, spoken) in [
        (&rustls::version::TLS12, rustls::ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, rustls::ProtocolVersion::TLSv1_3),
    ] {
        let tls = server.authority.client_config_of_versions(Some(&server.client), &[offered]);
        let mut client = Client::connect(server.address, tls).await.unwrap();
        for _ in 0..3 {
            let response = client.discover_versions().await.unwrap();
            assert_eq!(response.items[0].result_status, ResultStatus::Success);
            let fingerprint = response.header.server_correlation_value.unwrap();
            assert_eq!(fingerprint, server.client.fingerprint().to_string(), "the service knows who asks");
        }
        assert_eq!(client.0.get_ref().1.protocol_version(), Some(spoken));
    }
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_never_resumed() {
    let server = Running::start(ServerLimits::default()).await;
    for offered in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let tls = Arc::new(server.authority.client_config_of_versions(Some(&server.client), &[offered]));
        for _ in 0..3 {
            let mut client = Client::connect_with(server.address, &tls).await.unwrap();
            client.discover_versions().await.unwrap();
            assert_eq!(client.0.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        }
    }
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_certificate_serves_new_connections() {
    let server = Running::start(ServerLimits::default()).await;
    let leaf = |client: &Client| client.0.get_ref().1.peer_certificates().unwrap()[0].clone();
    let mut before = server.connect().await;
    let successor = server.authority.issue();
    server.handle.replace_tls(server.authority.server_config(&successor));
    let after = server.connect().await;
    assert_eq!(Fingerprint::of(&leaf(&after)), successor.fingerprint());
    assert_ne!(leaf(&before), leaf(&after));
    before.discover_versions().await.unwrap();
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_shutdown_a_request_under_way_is_answered_and_idle_connections_end() {
    let mut server = Running::start(ServerLimits::default()).await;
    let idle = server.connect().await;
    let mut busy = server.connect().await;
    busy.send(&request(RequestPayload::Query(QueryRequest::default()))).await.unwrap();
    within(server.started.recv()).await.unwrap();
    server.handle.shut_down();
    idle.closed().await;
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody new gets in");
    server.gate.notify_one();
    assert_eq!(busy.receive().await.unwrap().items[0].result_status, ResultStatus::Success);
    busy.closed().await;
    within(server.run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_that_takes_too_long_drops_what_is_under_way() {
    let limits = ServerLimits { shutdown_time: Duration::from_millis(50), ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    let mut busy = server.connect().await;
    busy.send(&request(RequestPayload::Query(QueryRequest::default()))).await.unwrap();
    within(server.started.recv()).await.unwrap();
    server.handle.shut_down();
    within(server.run).await.unwrap();
    assert!(busy.receive().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_is_answered_so_and_the_connection_closed() {
    let mut server = Running::start(ServerLimits::default()).await;
    let two_gibibytes = [0x42, 0x00, 0x78, 0x01, 0x80, 0, 0, 0];
    let nearly_four = [0x42, 0x00, 0x78, 0x01, 0xFF, 0xFF, 0xFF, 0xF8];
    let a_response = [0x42, 0x00, 0x7B, 0x01, 0, 0, 0, 8];
    let mut broken = request(RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default()));
    broken[HEADER_BYTES + 3] = 0x77;
    let garbage: [&[u8]; 5] =
        [&two_gibibytes, &nearly_four, &a_response, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", &broken];
    for bytes in garbage {
        let mut client = server.connect().await;
        client.send(bytes).await.unwrap();
        client.refused_for(ResultReason::InvalidMessage).await;
        let (reason, peer) = server.refusal().await;
        assert!(reason.starts_with("Malformed(Ttlv("), "{reason}");
        assert_eq!(peer, Some(server.client.fingerprint()));
    }
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_another_version_is_refused_and_the_next_one_answered() {
    let mut server = Running::start(ServerLimits::default()).await;
    let mut client = server.connect().await;
    let header = RequestHeader::new(ProtocolVersion { major: 2, minor: 1 });
    let payload = RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default());
    client.send(&RequestMessage { header, items: vec![payload.into()] }.encode()).await.unwrap();
    let response = client.receive().await.unwrap();
    assert_eq!(response.header.protocol_version, ProtocolVersion::V1_4);
    assert_eq!(response.items[0].result_reason, Some(ResultReason::InvalidMessage));
    assert!(response.items[0].result_message.as_ref().unwrap().contains("KMIP 2.1 is not spoken here"));
    assert!(server.refusal().await.0.starts_with("Malformed(Version("));
    client.discover_versions().await.unwrap();
    server.serves_and_ends().await;
}
