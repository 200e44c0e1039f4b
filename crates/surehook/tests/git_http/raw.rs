//! HTTP by hand, for what git would never send, and requests that git would send, made by hand.

use async_compression::tokio::write::GzipEncoder;
use base64::Engine as _;
use std::path::Path;
use std::process::Stdio;
use surehook::git::pktline::{FLUSH, packet};
use surehook_testkit::git::Checkout;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::server::{PASSWORD, PATIENCE, Server};

pub(crate) const ZEROS: &str = "0000000000000000000000000000000000000000";
pub(crate) const SIDE_BAND: &str = " report-status side-band-64k agent=by-hand";

/// Opens a connection and sends the head of a POST to a half of the protocol, with these further header lines.
pub(crate) async fn begin(server: &Server, path: &str, headers: &[&str]) -> TcpStream {
    let half = path.rsplit('/').next().unwrap();
    let login = base64::engine::general_purpose::STANDARD.encode(format!("ada:{PASSWORD}"));
    let mut head = format!(
        "POST /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {login}\r\n\
         Content-Type: application/x-{half}-request\r\n"
    );
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    stream
}

/// A POST with a whole body; gives all that comes back.
pub(crate) async fn post(server: &Server, path: &str, headers: &[&str], body: &[u8]) -> String {
    let length = format!("Content-Length: {}", body.len());
    let mut stream = begin(server, path, &[headers, &[&length]].concat()).await;
    // The server may refuse before it has read everything.
    let _ = stream.write_all(body).await;
    read_all(&mut stream).await
}

/// A request with nothing but its first line and a host.
pub(crate) async fn plain(server: &Server, method: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    read_all(&mut stream).await
}

pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads until `text` has come, and gives all that came.
pub(crate) async fn read_until(stream: &mut TcpStream, is_there: impl Fn(&str) -> bool) -> String {
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if is_there(&text) {
            return text;
        }
        let mut buffer = [0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("more in time").unwrap();
        assert!(read > 0, "the answer ended early: {text}");
        answer.extend_from_slice(&buffer[..read]);
    }
}

/// The body of a push that creates `reference` at `new` in an empty repository.
pub(crate) async fn push_body(checkout: &Checkout<'_>, reference: &str, new: &str, capabilities: &str) -> Vec<u8> {
    let pack = feed(checkout, &["pack-objects", "--stdout", "--revs", "--quiet"], format!("{new}\n").as_bytes()).await;
    let command = packet(format!("{ZEROS} {new} {reference}\0{capabilities}").as_bytes());
    [&command[..], FLUSH, &pack].concat()
}

/// Runs git with this input, and gives its output.
pub(crate) async fn feed(checkout: &Checkout<'_>, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = checkout.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "git {arguments:?}");
    output.stdout
}

pub(crate) async fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzipEncoder::new(Vec::new());
    encoder.write_all(bytes).await.unwrap();
    encoder.shutdown().await.unwrap();
    encoder.into_inner()
}

/// Whether a process of this machine has this path among its arguments.
pub(crate) fn is_used_by_a_process(path: &Path) -> bool {
    !processes_using(path).is_empty()
}

pub(crate) fn processes_using(path: &Path) -> Vec<i32> {
    let needle = path.to_str().unwrap().as_bytes();
    let has_it = |entry: &std::fs::DirEntry| {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        arguments.windows(needle.len()).any(|window| window == needle)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten().filter(has_it);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Bytes that no compression makes smaller.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(bytes / 8)
    .flatten()
    .collect()
}

/// Puts a hook into a repository on the server's disk.
pub(crate) fn hook(repository: &Path, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = repository.join("hooks");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A script that says that it has begun by making the file `begun`, and goes on when the file `go` is there.
pub(crate) const WAITING_HOOK: &str = "touch begun; while ! [ -e go ]; do sleep 0.02; done";

/// Waits until a [`WAITING_HOOK`] runs.
pub(crate) async fn hook_begun(repository: &Path) {
    let begun = repository.join("begun");
    surehook_testkit::eventually(PATIENCE, async || begun.exists().then_some(())).await;
}

pub(crate) fn let_hook_go(repository: &Path) {
    std::fs::write(repository.join("go"), "").unwrap();
}
