use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};

use super::*;

#[tokio::test]
async fn the_first_byte_is_enough_to_know_of_a_lock() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/log", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        let length = connection.read(&mut asked).unwrap();
        let answer =
            b"HTTP/1.1 206 Partial Content\r\nx-amz-object-lock-retain-until-date: 2026-12-25T15:00:00Z\r\n\
            content-length: 1\r\n\r\nx";
        connection.write_all(answer).unwrap();
        String::from_utf8_lossy(&asked[..length]).to_lowercase()
    });
    let fetcher = Fetcher::new(&[], false).unwrap();
    assert_eq!(fetcher.locked_until(), None);
    fetcher.touch(&url, Instant::now() + Duration::from_secs(60)).await.unwrap();
    assert_eq!(fetcher.locked_until(), "2026-12-25T15:00:00Z".parse::<Timestamp>().ok());
    let asked = serving.join().unwrap();
    assert!(asked.contains("range: bytes=0-0"), "{asked}");
}

#[tokio::test]
async fn the_first_byte_is_enough_to_know_of_the_size() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let deadline = Instant::now() + Duration::from_secs(60);
    for (answer, size) in [
        ("206 Partial Content\r\ncontent-range: bytes 0-0/1234\r\ncontent-length: 1", Some(1234)),
        ("206 Partial Content\r\ncontent-range: bytes 0-0/*\r\ncontent-length: 1", None),
        // Of a store that gives no pieces.
        ("200 OK\r\ncontent-length: 1", Some(1)),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}/archive", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            assert!(connection.read(&mut [0; 4096]).unwrap() > 0);
            connection.write_all(format!("HTTP/1.1 {answer}\r\n\r\nx").as_bytes()).unwrap();
        });
        let fetcher = Fetcher::new(&[], false).unwrap();
        assert_eq!(fetcher.touch(&url, deadline).await.unwrap(), size, "{answer}");
        serving.join().unwrap();
    }
}

#[tokio::test]
async fn an_answer_that_is_always_there_does_not_outlast_its_time() {
    let answer = || reqwest::Response::from(http::Response::new(vec![0_u8; 1000]));
    let all = |mut pieces: Pieces| Ok(pieces.read_to_end(&mut Vec::new())?);
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(read_on(answer(), None, later, all).await.unwrap(), 1000);
    let late = read_on(answer(), None, Instant::now(), all).await.unwrap_err();
    assert!(late.to_string().contains("--timeout"), "{late}");
}

#[tokio::test]
async fn a_store_that_redirects_does_not_hand_the_signed_url_on() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let serve = |answer: String| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            let length = connection.read(&mut asked).unwrap();
            connection.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..length]).to_lowercase()
        });
        (url, serving)
    };
    let (to, second) =
        serve("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok".to_owned());
    let (from, first) = serve(format!(
        "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: {to}/elsewhere\r\nContent-Length: 0\r\n\r\n"
    ));
    let (url, deadline) = (format!("{from}/log?signature=s3cret"), Instant::now() + Duration::from_secs(60));
    let read = Fetcher::new(&[], false).unwrap().raw(&url, deadline, |_| Ok(())).await.unwrap();
    assert!(matches!(read, Unpacked::Read(2)));
    assert!(first.join().unwrap().contains("s3cret"));
    let asked = second.join().unwrap();
    assert!(asked.starts_with("get /elsewhere ") && !asked.contains("s3cret"), "{asked}");
}
