//! The recording receiver, spoken to over plain TCP and by hyper's client.

use std::{io::ErrorKind, time::Duration};

use http_body_util::{BodyExt as _, Full};
use surehook_testkit::{
    eventually,
    receiver::{Answer, Receiver},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends one request and reads until the connection ends.
async fn exchange(receiver: &Receiver) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(receiver.address()).await?;
    stream.write_all(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn bytes_are_recorded_as_they_came_and_connections_are_reused() {
    let receiver = Receiver::with_answers([Answer::status(202)], Answer::with_header(409, "X-Seen", "yes")).await;
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    let first = b"POST /a?b=%20 HTTP/1.1\r\nX-OdD: 1 \r\nx-odd: \xff\r\nContent-Length: 4\r\n\r\n\x00\r\n\xff";
    let second = b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
    stream.write_all(first).await.unwrap();
    stream.write_all(second).await.unwrap();
    let requests = receiver.wait_for(2).await;
    assert_eq!(requests[0].method, "POST");
    assert_eq!(requests[0].path, "/a?b=%20");
    assert_eq!(requests[0].headers[0], ("X-OdD".into(), "1".into()));
    assert_eq!(requests[0].headers[1], ("x-odd".into(), b"\xff".as_slice().into()));
    assert_eq!(&requests[0].body[..], b"\x00\r\n\xff");
    assert_eq!(requests[1].text(), "abcde");
    assert_eq!((requests[0].connection, requests[1].connection, receiver.connections()), (0, 0, 1));
    stream.shutdown().await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert!(answers.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answers}");
    assert!(answers.contains("HTTP/1.1 409 Conflict\r\nX-Seen: yes\r\n"), "{answers}");
}

#[tokio::test]
async fn every_scripted_failure_is_what_it_says() {
    let script = [Answer::Close, Answer::Reset, Answer::HalfHead, Answer::HalfBody { code: 200 }, Answer::Garbage];
    let receiver = Receiver::with_answers(script, Answer::Hang).await;
    assert_eq!(exchange(&receiver).await.unwrap(), "");
    assert_eq!(exchange(&receiver).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(exchange(&receiver).await.unwrap(), "HTTP/1.1 200 OK\r\nContent-Ty");
    let half = exchange(&receiver).await.unwrap();
    assert!(half.contains("Content-Length: 1000") && half.matches('.').count() == 501, "{half}");
    assert!(exchange(&receiver).await.unwrap().contains("SSH"));
    let patience = tokio::time::timeout(Duration::from_millis(50), exchange(&receiver)).await;
    assert!(patience.is_err(), "it hangs");
    receiver.answer_all(Answer::Endless);
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut much = vec![0; 1 << 20];
    stream.read_exact(&mut much).await.unwrap();
    receiver.answer_all(Answer::Drip { interval: Duration::from_millis(1) });
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut some = vec![0; 100];
    stream.read_exact(&mut some).await.unwrap();
    let address = receiver.address();
    drop(receiver);
    eventually(Duration::from_secs(5), async || TcpStream::connect(address).await.is_err().then_some(())).await;
}

#[tokio::test]
async fn a_real_client_understands_it() {
    let receiver = Receiver::start(|request| match request.path.as_str() {
        "/slow" => Answer::status(204).after(Duration::from_millis(20)),
        _ => Answer::RedirectTo("http://elsewhere.test/".to_owned()),
    })
    .await;
    let executor = hyper_util::rt::TokioExecutor::new();
    #[expect(clippy::disallowed_methods, reason = "a client for this test")]
    let client = hyper_util::client::legacy::Client::builder(executor).build_http();
    let ask = async |path: &str| {
        let request = http::Request::post(receiver.url(path)).body(Full::new("body".into()));
        client.request(request.unwrap() as http::Request<Full<bytes::Bytes>>).await.unwrap()
    };
    let slow = ask("/slow").await;
    assert_eq!(slow.status(), 204);
    assert!(slow.into_body().collect().await.unwrap().to_bytes().is_empty());
    let moved = ask("/moved").await;
    assert_eq!(moved.headers()["location"], "http://elsewhere.test/");
    assert_eq!(receiver.requests()[1].text(), "body");
    assert_eq!(receiver.in_flight_max(), 1);
}
