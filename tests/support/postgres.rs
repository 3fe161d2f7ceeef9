//! A PostgreSQL server of the tests' own: a new cluster, on a free port, gone when the process that
//! started it is gone, however it ends.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Started with the directory of PostgreSQL's programs and a port. The standard input is open for
/// as long as the server is wanted; PostgreSQL refuses to run as root.
const SERVE: &str = r#"
programs=$1 port=$2
directory=$(mktemp -d /tmp/backstop-postgres-XXXXXX) || exit 1
"$programs/initdb" --pgdata "$directory/data" --auth trust --username backstop --encoding UTF8 \
    --locale C --no-sync >"$directory/initdb.log" || { cat "$directory/initdb.log" >&2; exit 1; }

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE \
    -keyout "$directory/server.key" -out "$directory/server.crt" 2>"$directory/openssl.log" ||
    { cat "$directory/openssl.log" >&2; exit 1; }
chmod 600 "$directory/server.key"

start() {
    "$programs/postgres" -D "$directory/data" -k "$directory" -p "$port" -c listen_addresses=127.0.0.1 \
        -c fsync=off -c max_connections=200 -c deadlock_timeout=200ms -c ssl=on \
        -c ssl_cert_file="$directory/server.crt" -c ssl_key_file="$directory/server.key" \
        >>"$directory/server.log" 2>&1 </dev/null &
    server=$!
    tries=0
    until "$programs/pg_isready" -q -h 127.0.0.1 -p "$port"; do
        tries=$((tries + 1))
        if ! kill -0 $server 2>/dev/null || [ $tries -gt 300 ]; then
            cat "$directory/server.log" >&2
            exit 1
        fi
        sleep 0.1
    done
}
stop() {
    kill -s "$1" $server
    wait $server
}

start
"$programs/createdb" -h 127.0.0.1 -p "$port" -U backstop backstop
chmod 755 "$directory"
echo "done $directory"
while read -r command; do
    case $command in
    start) start ;;
    stop) stop INT ;;
    crash) stop QUIT ;;
    esac
    echo done
done
kill -s INT $server 2>/dev/null && wait $server
rm -rf "$directory"
"#;

/// A running server.
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    /// Its standard input keeps the server alive.
    keeper: Child,
    told: BufReader<ChildStdout>,
    directory: PathBuf,
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
        let told = BufReader::new(keeper.stdout.take().unwrap());
        let mut server = Self { port, keeper, told, directory: PathBuf::new() };
        server.directory = server.wait().into();
        server
    }

    /// The certificate it shows to who asks for TLS: for the name `localhost`, by itself.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("server.crt")
    }

    /// Starts it again on what it had written.
    pub fn start_again(&mut self) {
        self.tell("start");
    }

    /// Ends it and every connection (a fast shutdown).
    pub fn stop(&mut self) {
        self.tell("stop");
    }

    /// Ends it as a crash does: it recovers at its next start.
    pub fn crash(&mut self) {
        self.tell("crash");
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.keeper.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.wait();
    }

    fn wait(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        let done = line.trim().strip_prefix("done");
        done.expect("PostgreSQL did not do as told: see above").trim().to_owned()
    }

    /// The URL of its one database, whose user may do everything.
    pub fn url(&self) -> String {
        format!("postgres://backstop@127.0.0.1:{}/backstop", self.port)
    }
}

/// Where PostgreSQL's programs are: `POSTGRES_BIN`, else the newest that Debian installed.
fn programs() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "a setting of the tests, not of the service")]
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
