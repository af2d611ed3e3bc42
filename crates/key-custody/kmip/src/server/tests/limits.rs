//! Every limit, while other clients are still served.

use super::*;

/// Short enough for a test to wait for, long enough for the test's other steps.
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections_leave_room_for_one_that_asks() {
    // Fifty concurrent handshakes take as long as a busy machine needs.
    let limits = ServerLimits { handshake_time: DEADLINE, ..ServerLimits::default() };
    let server = Running::start(limits).await;
    let tls = Arc::new(server.authority.client_config(Some(&server.client)));
    let mut idle = Vec::new();
    for _ in 0..20 {
        let connecting: Vec<_> = (0..50)
            .map(|_| {
                let (address, tls) = (server.address, Arc::clone(&tls));
                tokio::spawn(async move { Client::connect_with(address, &tls).await.unwrap() })
            })
            .collect();
        for connected in connecting {
            idle.push(within(connected).await.unwrap());
        }
    }
    server.until_connections(1000).await;
    let mut asking = server.connect().await;
    for _ in 0..10 {
        asking.discover_versions().await.unwrap();
    }
    idle[999].discover_versions().await.unwrap();
    assert_eq!(server.handle.close_peers(|_| true), 1001);
    for client in idle {
        client.closed().await;
    }
    server.until_connections(0).await;
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_refused() {
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    let (one, two) = (server.connect().await, server.connect().await);
    let mut three = server.connect().await;
    assert!(three.discover_versions().await.is_err());
    assert_eq!(server.refusal().await, ("Connections(2)".to_owned(), Some(server.client.fingerprint())));
    drop((one, two));
    server.until_connections(0).await;
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_keep_nobody_out_who_has_a_certificate() {
    let limits = ServerLimits { handshakes: 8, handshake_time: DEADLINE, ..ServerLimits::default() };
    let server = Running::start(limits).await;
    let mut asking = server.connect().await;
    asking.discover_versions().await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..5 {
        for _ in 0..100 {
            silent.push(TcpStream::connect(server.address).await.unwrap());
        }
        server.connect().await.discover_versions().await.unwrap();
        asking.discover_versions().await.unwrap();
    }
    // All but the last ones were closed.
    let mut byte = [0];
    assert!(matches!(within(silent[0].read(&mut byte)).await, Ok(0) | Err(_)));
    assert!(server.handle.connections() <= 8 + 2, "{}", server.handle.connections());
    drop(silent);
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_certificate_cannot_take_all_connections() {
    let limits = ServerLimits { connections_of_one_peer: 1, ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    let mut one = server.connect().await;
    one.discover_versions().await.unwrap();
    let mut two = server.connect().await;
    assert!(two.discover_versions().await.is_err());
    assert_eq!(
        server.refusal().await,
        ("ConnectionsOfOnePeer(1)".to_owned(), Some(server.client.fingerprint()))
    );
    let other = server.authority.issue();
    let tls = server.authority.client_config(Some(&other));
    Client::connect(server.address, tls).await.unwrap().discover_versions().await.unwrap();
    drop(one);
    server.until_connections(0).await;
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_does_not_come_is_not_waited_for() {
    let limits = ServerLimits { handshake_time: SHORT, ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(server.refusal().await.0, "HandshakeTime");
    let mut byte = [0];
    assert!(matches!(within(silent.read(&mut byte)).await, Ok(0) | Err(_)));
    server.handle.shut_down();
    within(server.run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_trickle_are_not_waited_for() {
    let limits = ServerLimits { request_time: SHORT, ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    let whole = request(RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default()));
    for sent_bytes in [1, 7, 8, 9, whole.len() - 1] {
        let mut slow = server.connect().await;
        slow.send(&whole[..sent_bytes]).await.unwrap();
        let (reason, peer) = server.refusal().await;
        assert_eq!((reason.as_str(), peer), ("RequestTime", Some(server.client.fingerprint())));
        slow.closed().await;
    }
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_is_not_waited_for() {
    let limits = ServerLimits { response_time: SHORT, ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    let mut deaf = server.connect().await;
    // More than the kernel buffers between client and server.
    let length = RngRetrieveRequest { data_length: 64 << 20 };
    deaf.send(&request(RequestPayload::RngRetrieve(length))).await.unwrap();
    assert_eq!(server.refusal().await.0, "ResponseTime");
    drop(deaf);
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_ends_without_being_a_refusal() {
    let limits = ServerLimits { idle_time: SHORT, ..ServerLimits::default() };
    let mut server = Running::start(limits).await;
    server.connect().await.closed().await;
    server.until_connections(0).await;
    assert!(server.reports.try_recv().is_err());
    server.handle.shut_down();
    within(server.run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_in_the_middle_of_a_request_harms_nobody() {
    let server = Running::start(ServerLimits::default()).await;
    let whole = request(RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default()));
    for sent_bytes in [0, 1, 8, whole.len() - 1, whole.len()] {
        let mut leaving = server.connect().await;
        leaving.send(&whole[..sent_bytes]).await.unwrap();
    }
    server.until_connections(0).await;
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_for_memory_and_get_it_in_turn() {
    // Less than the longest request, so that requests run one at a time.
    let limits = ServerLimits { requests_kib: 1, ..ServerLimits::default() };
    let server = Running::start(limits).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(server.connect().await);
    }
    let asking: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                for _ in 0..20 {
                    client.discover_versions().await.unwrap();
                }
            })
        })
        .collect();
    for asked in asking {
        within(asked).await.unwrap();
    }
    server.serves_and_ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_may_be_as_long_as_the_limit_says() {
    let message = Limits::with_message_bytes(4096);
    let mut server = Running::start(ServerLimits { message, ..ServerLimits::default() }).await;
    let names = |count: usize| {
        let query_functions = vec![QueryFunction::Operations; count];
        request(RequestPayload::Query(QueryRequest { query_functions }))
    };
    let room = (4096 - names(0).len()) / 16;
    let mut client = server.connect().await;
    client.send(&names(room)).await.unwrap();
    within(server.started.recv()).await.unwrap();
    server.gate.notify_one();
    client.receive().await.unwrap();
    client.send(&names(room + 1)).await.unwrap();
    client.refused_for(ResultReason::InvalidMessage).await;
    assert!(server.refusal().await.0.contains("MessageTooLong"));
    server.serves_and_ends().await;
}
