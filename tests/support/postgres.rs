//! A PostgreSQL server of the tests' own: a new cluster, on a free port, gone when the process that
//! started it is gone, however it ends.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Started with the directory of PostgreSQL's programs and a port. The standard input is open for
/// as long as the server is wanted; PostgreSQL refuses to run as root.
const SERVE: &str = r#"
set -e
directory=$(mktemp -d /tmp/backstop-postgres-XXXXXX)
"$1/initdb" --pgdata "$directory/data" --auth trust --username backstop --encoding UTF8 \
    --locale C --no-sync >"$directory/initdb.log" || { cat "$directory/initdb.log" >&2; exit 1; }
"$1/postgres" -D "$directory/data" -k "$directory" -p "$2" -c listen_addresses=127.0.0.1 \
    -c fsync=off -c max_connections=200 -c deadlock_timeout=200ms \
    >"$directory/server.log" 2>&1 </dev/null &
server=$!
tries=0
until "$1/pg_isready" -q -h 127.0.0.1 -p "$2"; do
    tries=$((tries + 1))
    kill -0 $server 2>/dev/null && [ $tries -lt 300 ] || { cat "$directory/server.log" >&2; exit 1; }
    sleep 0.1
done
"$1/createdb" -h 127.0.0.1 -p "$2" -U backstop backstop
echo ready
cat >/dev/null
kill -INT $server
wait $server || true
rm -rf "$directory"
"#;

/// A running server.
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    schemas: AtomicU32,
    /// Its standard input keeps the server alive.
    _keeper: Child,
}

impl PostgresServer {
    /// Starts one. Waits until it takes connections.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start, saying so.
    pub fn start() -> Self {
        let programs = programs().expect(
            "PostgreSQL is missing. Run `deploy/local/install.sh postgresql`, or `make test`",
        );
        let port =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut shell = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        let mut keeper = shell
            .args(["-c", SERVE, "serve"])
            .arg(programs)
            .arg(port.to_string())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready", "PostgreSQL did not start: see above");
        Self { port, schemas: AtomicU32::new(0), _keeper: keeper }
    }

    /// The URL of its one database, whose user may do everything.
    pub fn url(&self) -> String {
        format!("postgres://backstop@127.0.0.1:{}/backstop", self.port)
    }

    /// A schema's name that was not given before.
    pub fn new_schema(&self) -> String {
        format!("store_{}", self.schemas.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where PostgreSQL's programs are: `POSTGRES_BIN`, else the newest that Debian installed.
fn programs() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("POSTGRES_BIN") {
        return Some(named.into());
    }
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            Some((version, path.join("bin"))).filter(|(_, bin)| bin.join("initdb").exists())
        })
        .collect();
    versions.sort();
    versions.pop().map(|(_, bin)| bin)
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
