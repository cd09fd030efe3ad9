use std::io::{BufRead as _, BufReader, LineWriter};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use serde_json::json;

use super::*;

/// How a store answers a request for a piece.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Rightly,
    /// With the whole.
    Whole,
    /// In chunks, without a length, and then goes on for ever.
    Endless,
    /// In chunks, and only the beginning.
    Short,
    /// With nothing, in chunks.
    Empty,
}

/// A store of two artifacts.
struct Store {
    index: Vec<u8>,
    archive: Vec<u8>,
    way: Way,
    /// What was asked for: paths, and pieces.
    asked: Mutex<Vec<String>>,
    /// Bytes of bodies that were taken from it.
    sent: AtomicU64,
}

impl Store {
    fn answer(&self, connection: TcpStream) -> std::io::Result<()> {
        let (mut path, mut range) = (String::new(), None);
        for line in BufReader::new(&connection).lines() {
            let line = line?.to_lowercase();
            match line.split_once(' ') {
                Some(("get", rest)) => rest.split(' ').next().unwrap().clone_into(&mut path),
                Some(("range:", bytes)) => range = Some(bytes.trim().to_owned()),
                _ if line.is_empty() => break,
                _ => {}
            }
        }
        self.asked.lock().push(format!("{path} {}", range.clone().unwrap_or_default()).trim_end().to_owned());
        let whole = if path == "/index" { &self.index } else { &self.archive };
        let mut out = connection;
        let mut send = |bytes: &[u8]| {
            out.write_all(bytes)?;
            self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok::<_, std::io::Error>(())
        };
        let range = range.filter(|_| self.way != Way::Whole);
        let Some((from, last)) =
            range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'))
        else {
            send(
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", whole.len())
                    .as_bytes(),
            )?;
            return send(whole);
        };
        let (from, to) = (from.parse::<usize>().unwrap(), last.parse::<usize>().unwrap() + 1);
        let Some(piece) = whole.get(from..to) else {
            return send(
                b"HTTP/1.1 416 Range Not Satisfiable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            );
        };
        let length = match self.way {
            Way::Rightly => format!("Content-Length: {}", piece.len()),
            _ => "Transfer-Encoding: chunked".to_owned(),
        };
        let told = format!("bytes {from}-{last}/{}", whole.len());
        send(format!("HTTP/1.1 206 Partial Content\r\nConnection: close\r\n{length}\r\nContent-Range: {told}\r\n\r\n").as_bytes())?;
        let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        match self.way {
            Way::Rightly | Way::Whole => send(piece),
            Way::Short => send(&[chunk(&piece[..piece.len() / 2]), chunk(&[])].concat()),
            Way::Empty => send(&chunk(&[])),
            Way::Endless => {
                send(&chunk(piece))?;
                let more = chunk(&member(&[("pods/namespaces/web/b", json!({"more": "x".repeat(60_000)}))]));
                loop {
                    send(&more)?;
                }
            }
        }
    }
}

fn member(objects: &[(&str, Value)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, object) in objects {
        let (text, mut header) = (object.to_string(), tar::Header::new_gnu());
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("resources/{path}.json"), text.as_bytes()).unwrap();
    }
    let tar = builder.into_inner().unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    // Without the two blocks at the end.
    gzip.write_all(&tar[..tar.len() - 1024]).unwrap();
    gzip.finish().unwrap()
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "name": name})
}

/// An archive of two members, and its index.
fn archive() -> (Vec<u8>, ArchiveIndex) {
    let first = member(&[("pods/namespaces/web/a", pod("a")), ("pods/namespaces/web/c", pod("c"))]);
    let second = member(&[("pods/namespaces/web/e", pod("e")), ("nodes/cluster/n", json!({"kind": "Node"}))]);
    let (middle, end) = (first.len() as u64, (first.len() + second.len()) as u64);
    let mut index = ArchiveIndex::default();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    index.note("pods", &names(&["web/a", "web/c"]), ByteRange { from: 0, to: middle });
    index.note("pods", &names(&["web/e"]), ByteRange { from: middle, to: end });
    index.note("nodes", &names(&["n"]), ByteRange { from: middle, to: end });
    ([first, second].concat(), index)
}

/// Starts the store.
fn serve(store: &Arc<Store>) -> SocketAddr {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = Arc::clone(store);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // Whoever has enough takes no more.
            let _ = serving.answer(connection.unwrap());
        }
    });
    address
}

fn source(address: SocketAddr, name: &str, artifact: DownloadArtifact) -> ArtifactSource {
    ArtifactSource {
        url: format!("http://{address}/{name}"),
        fetcher: Fetcher::new(&[], false).unwrap(),
        name: "b".to_owned(),
        artifact,
        deadline: Instant::now() + Duration::from_secs(120),
        waits: false,
    }
}

async fn look(wanted: &str, index: Vec<u8>, archive: Vec<u8>, way: Way) -> (LookedUp, Vec<String>, u64) {
    let (asked, sent) = (Mutex::default(), AtomicU64::new(0));
    let store = Arc::new(Store { index, archive, way, asked, sent });
    let address = serve(&store);
    let archive = source(address, "archive", DownloadArtifact::Contents);
    let index = source(address, "index", DownloadArtifact::Index);
    let found = looked_up(Ok(index), &archive, wanted).await;
    let asked = store.asked.lock().clone();
    (found, asked, store.sent.load(Ordering::Relaxed))
}

#[tokio::test]
async fn an_object_is_looked_up_by_the_index_of_its_own_archive_and_by_no_other() {
    let (archive, index) = archive();
    let bytes = archive.len() as u64;
    let right = index.file(bytes).unwrap().unwrap();
    let found = |name: &str| LookedUp::Found(pod(name));
    for (wanted, expected) in [
        ("pods/web/a", found("a")),
        ("pods/web/e", found("e")),
        ("nodes/n", LookedUp::Found(json!({"kind": "Node"}))),
        // Between the ends of a member, outside of all, and of no type that is there.
        ("pods/web/b", LookedUp::Nowhere),
        ("pods/web/z", LookedUp::Nowhere),
        ("secrets/web/a", LookedUp::Nowhere),
        ("pods", LookedUp::Unknown),
    ] {
        assert_eq!(look(wanted, right.clone(), archive.clone(), Way::Rightly).await.0, expected, "{wanted}");
        // A store that gives no pieces.
        let whole = look(wanted, right.clone(), archive.clone(), Way::Whole).await.0;
        assert_eq!(whole, LookedUp::Unknown, "{wanted}");
    }
    let (_, asked, _) = look("pods/web/z", right.clone(), archive.clone(), Way::Rightly).await;
    assert_eq!(asked, ["/index", "/archive bytes=0-0"], "one byte tells whose index it is");
    // That of an archive of another size, and none, know nothing of what is there.
    let stale = index.file(bytes + 1).unwrap().unwrap();
    let nobody = br#"{"index":1,"bytes":1,"spans":{}}"#.to_vec();
    for wanted in ["pods/web/a", "pods/web/b", "pods/web/z", "secrets/web/a"] {
        for index in [stale.clone(), nobody.clone(), b"none".to_vec()] {
            assert_eq!(
                look(wanted, index, archive.clone(), Way::Rightly).await.0,
                LookedUp::Unknown,
                "{wanted}"
            );
        }
    }
}

#[tokio::test]
async fn a_piece_that_has_not_what_the_index_says_denies_nothing() {
    let (archive, _) = archive();
    let nodes = member(&[("nodes/cluster/a", pod("a"))]);
    // Objects of another type, blocks of zeros, and nothing at all.
    let mut zeros = GzEncoder::new(Vec::new(), Compression::none());
    zeros.write_all(&[0; 512]).unwrap();
    let zeros = zeros.finish().unwrap();
    let nothing = GzEncoder::new(Vec::new(), Compression::none()).finish().unwrap();
    for piece in [nodes, zeros, nothing] {
        let mut index = ArchiveIndex::default();
        let names = ["web/a".to_owned(), "web/z".to_owned()];
        index.note("pods", &names, ByteRange { from: 0, to: piece.len() as u64 });
        let archive = [piece, archive.clone()].concat();
        let index = index.file(archive.len() as u64).unwrap().unwrap();
        assert_eq!(look("pods/web/b", index, archive, Way::Rightly).await.0, LookedUp::Unknown);
    }
}

#[tokio::test]
async fn of_an_answer_no_more_is_read_than_the_piece_and_one_that_is_shorter_denies_nothing() {
    let (archive, index) = archive();
    let index = index.file(archive.len() as u64).unwrap().unwrap();
    let ask = async |wanted: &str, way: Way| look(wanted, index.clone(), archive.clone(), way).await;
    for (wanted, expected) in [
        ("pods/web/a", LookedUp::Found(pod("a"))),
        ("pods/web/b", LookedUp::Nowhere),
        ("pods/web/z", LookedUp::Nowhere),
    ] {
        let (found, _, sent) = ask(wanted, Way::Endless).await;
        assert_eq!(found, expected, "{wanted}");
        // What lies in the buffers of the connection was sent, too.
        assert!(sent < 64 << 20, "{sent}");
    }
    for way in [Way::Short, Way::Empty] {
        assert_eq!(ask("pods/web/b", way).await.0, LookedUp::Unknown, "{way:?}");
        assert_eq!(ask("pods/web/d", way).await.0, LookedUp::Unknown, "{way:?}");
    }
}

#[tokio::test]
async fn an_index_that_names_too_many_pieces_is_not_followed() {
    let (archive, _) = archive();
    let names = ["web/a".to_owned(), "web/z".to_owned()];
    let mut index = ArchiveIndex::default();
    for i in 0..100 {
        index.note("pods", &names, ByteRange { from: i * 2, to: i * 2 + 1 });
    }
    let index = index.file(archive.len() as u64).unwrap().unwrap();
    let (found, asked, _) = look("pods/web/b", index, archive, Way::Rightly).await;
    assert_eq!((found, asked), (LookedUp::Unknown, vec!["/index".to_owned()]));
}

#[test]
fn no_archive_is_written_to_a_terminal() {
    assert!(takes_archives(false).is_ok());
    assert!(takes_archives(true).unwrap_err().is::<crate::commands::person::WrongFlags>());
}

/// A disk that is full.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_archive_is_downloaded_when_its_last_bytes_are_written() {
    let archive = b"it has no line feed".to_vec();
    let (asked, sent) = (Mutex::default(), AtomicU64::new(0));
    let store = Arc::new(Store { index: Vec::new(), archive, way: Way::Rightly, asked, sent });
    let source = source(serve(&store), "archive", DownloadArtifact::Contents);
    let mut whole = Vec::new();
    source.copy_to(&mut whole).await.unwrap();
    assert_eq!(whole, store.archive);
    // As standard output, which writes whole lines.
    let error = source.copy_to(LineWriter::new(Full)).await.unwrap_err();
    assert!(error.is::<std::io::Error>(), "{error:#}");
}
