//! A Redis of the world's own, and as much of its protocol as the tests need: what the sidecar
//! would refuse to publish is put straight into a stream.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Launch, Process, Ready, find_on_path, free_ports};

/// How long a command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// A running Redis.
pub struct Redis {
    pub port: u16,
    /// None where the Redis belongs to another world.
    process: Option<Process>,
    directory: PathBuf,
}

/// What Redis answers.
#[derive(Debug)]
pub enum Reply {
    Nil,
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Reply>),
}

impl Redis {
    /// Starts one that keeps its data in `directory`, written through to disk.
    pub async fn start(directory: &Path) -> Self {
        assert!(
            find_on_path("redis-server").is_some(),
            "redis-server is missing. Run `deploy/local/install.sh redis-server`, or `make test`"
        );
        std::fs::create_dir_all(directory).unwrap();
        let [port] = free_ports().unwrap();
        let process = Some(Self::serve(directory, port).await);
        Self { port, process, directory: directory.to_owned() }
    }

    /// One that another world has started and will stop.
    pub fn of_another_world(port: u16) -> Self {
        Self { port, process: None, directory: PathBuf::new() }
    }

    /// Kills it (-9), unless it is another world's.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
        }
    }

    /// Starts it again on what it had written.
    pub async fn start_again(&mut self) {
        self.process = Some(Self::serve(&self.directory, self.port).await);
    }

    async fn serve(directory: &Path, port: u16) -> Process {
        let mut process = Launch::new("redis", "redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "no"])
            .directory(directory)
            .start()
            .unwrap();
        let address = (Ipv4Addr::LOCALHOST, port).into();
        process.wait_until(Ready::Tcp(address), super::SOON).await.unwrap();
        process
    }

    /// Puts an event's bytes into a stream as the sidecar's component does
    /// (components-contrib v1.18.3, `pubsub/redis/redis.go`, `Publish`).
    pub fn add(&self, stream: &str, data: &[u8]) {
        self.command(&[b"XADD", stream.as_bytes(), b"*", b"data", data]);
    }

    /// The same with several, in one transaction: they are read together.
    pub fn add_at_once(&self, stream: &str, data: &[Vec<u8>]) {
        let added: Vec<[&[u8]; 5]> = data
            .iter()
            .map(|data| [b"XADD".as_slice(), stream.as_bytes(), b"*", b"data", data])
            .collect();
        let begin: &[&[u8]] = &[b"MULTI"];
        let end: &[&[u8]] = &[b"EXEC"];
        let commands = [begin].into_iter().chain(added.iter().map(<[_; 5]>::as_slice));
        let commands: Vec<&[&[u8]]> = commands.chain([end]).collect();
        for reply in self.try_commands(&commands) {
            reply.unwrap_or_else(|error| panic!("redis: {error}"));
        }
    }

    /// The same with the broker's metadata, a JSON object of strings.
    pub fn add_with_metadata(&self, stream: &str, data: &[u8], metadata: &str) {
        let metadata = metadata.as_bytes();
        self.command(&[b"XADD", stream.as_bytes(), b"*", b"data", data, b"metadata", metadata]);
    }

    /// From now on nothing can be published to that topic: the name is taken by something else.
    pub fn spoil(&self, topic: &str) {
        self.command(&[b"SET", topic.as_bytes(), b"no stream"]);
    }

    /// Ends what [`Self::spoil`] began.
    pub fn mend(&self, topic: &str) {
        self.command(&[b"DEL", topic.as_bytes()]);
    }

    /// From now on no larger value is taken.
    pub fn take_bytes_max(&self, bytes: usize) {
        let bytes = bytes.to_string();
        self.command(&[b"CONFIG", b"SET", b"proto-max-bulk-len", bytes.as_bytes()]);
    }

    /// How many entries a stream has.
    pub fn len(&self, stream: &str) -> usize {
        match self.command(&[b"XLEN", stream.as_bytes()]) {
            Reply::Number(count) => usize::try_from(count).unwrap(),
            other => panic!("XLEN {stream}: {other:?}"),
        }
    }

    /// The data of a stream's entries, oldest first.
    pub fn entries(&self, stream: &str) -> Vec<Vec<u8>> {
        let Reply::List(entries) = self.command(&[b"XRANGE", stream.as_bytes(), b"-", b"+"]) else {
            panic!("XRANGE {stream} gave no list");
        };
        let data_of = |entry| match entry {
            // An id, and the fields.
            Reply::List(mut parts) => field(parts.pop().unwrap(), b"data"),
            other => panic!("XRANGE {stream}: an entry {other:?}"),
        };
        entries.into_iter().map(data_of).collect()
    }

    /// Entries handed to a consumer group and not yet acknowledged.
    pub fn pending(&self, stream: &str, group: &str) -> i64 {
        match self.command(&[b"XPENDING", stream.as_bytes(), group.as_bytes()]) {
            Reply::List(summary) => match summary.first() {
                Some(Reply::Number(count)) => *count,
                other => panic!("XPENDING {stream}: {other:?}"),
            },
            other => panic!("XPENDING {stream}: {other:?}"),
        }
    }

    /// Whether somebody consumes that stream under that name.
    pub fn is_consumed(&self, stream: &str, group: &str) -> bool {
        let Ok(Reply::List(groups)) = self.try_command(&[b"XINFO", b"GROUPS", stream.as_bytes()])
        else {
            return false;
        };
        groups.into_iter().any(|about| field(about, b"name") == group.as_bytes())
    }

    fn command(&self, words: &[&[u8]]) -> Reply {
        self.try_command(words)
            .unwrap_or_else(|error| panic!("redis: {}: {error}", String::from_utf8_lossy(words[0])))
    }

    fn try_command(&self, words: &[&[u8]]) -> Result<Reply, String> {
        self.try_commands(&[words]).remove(0)
    }

    /// Sends commands over one connection, and gives the answer to each.
    fn try_commands(&self, commands: &[&[&[u8]]]) -> Vec<Result<Reply, String>> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(COMMAND_TIMEOUT)).unwrap();
        let mut request = Vec::new();
        for words in commands {
            request.extend(format!("*{}\r\n", words.len()).as_bytes());
            for word in *words {
                request.extend(format!("${}\r\n", word.len()).as_bytes());
                request.extend(*word);
                request.extend(b"\r\n");
            }
        }
        (&stream).write_all(&request).unwrap();
        let mut answers = BufReader::new(stream);
        commands.iter().map(|_| read_reply(&mut answers)).collect()
    }
}

/// The value of one field in a flat list of names and values.
fn field(fields: Reply, name: &[u8]) -> Vec<u8> {
    let Reply::List(fields) = fields else { panic!("no list of fields: {fields:?}") };
    let mut fields = fields.into_iter();
    while let (Some(Reply::Bytes(key)), Some(value)) = (fields.next(), fields.next()) {
        if key == name {
            let Reply::Bytes(value) = value else { panic!("a field that is no text: {value:?}") };
            return value;
        }
    }
    Vec::new()
}

fn read_reply(from: &mut impl BufRead) -> Result<Reply, String> {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    let (kind, rest) = line.trim_end().split_at(1);
    let number = || rest.parse::<i64>().unwrap();
    match kind {
        "+" => Ok(Reply::Bytes(rest.as_bytes().to_vec())),
        "-" => Err(rest.to_owned()),
        ":" => Ok(Reply::Number(number())),
        "$" => {
            let Ok(length) = usize::try_from(number()) else { return Ok(Reply::Nil) };
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes).unwrap();
            bytes.truncate(length);
            Ok(Reply::Bytes(bytes))
        }
        "*" => (0..number()).map(|_| read_reply(from)).collect::<Result<_, _>>().map(Reply::List),
        other => panic!("redis answered {other:?}"),
    }
}
