//! The contract of `dapr.yaml` with a real Dapr CLI: the sidecar arguments and the environment that
//! `dapr run -f .` makes of it, and that the service understands that environment.
//!
//! What is expected here was taken from the CLI's source (see `examples/local/dapr_yaml.rs`), not
//! from what our own code prints.

#![allow(clippy::unwrap_used, reason = "a test's helper is test code too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backstop::{Config, StoreUrl};

#[path = "../examples/local/dapr_yaml.rs"]
mod dapr_yaml;

use dapr_yaml::{Choices, Ports, Run, Template};

/// As a CLI picks them.
const PORTS: Ports =
    Ports { http: 40_001, grpc: 40_002, metrics: 40_003, internal_grpc: 40_004, profile: 40_005 };

fn checkout() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn ours(choices: &Choices) -> Run {
    let template = Template::read(&checkout().join("dapr.yaml")).unwrap();
    template.app(Some("order-service")).unwrap().run(choices)
}

fn parse(text: &str) -> anyhow::Result<Template> {
    Template::parse(text, "dapr.yaml", Path::new("/app"))
}

fn run(text: &str) -> Run {
    parse(text).unwrap().app(None).unwrap().run(&Choices::without_init(PORTS))
}

/// Arguments written one option a line: its value is what follows the first blank.
fn words(lines: &[&str]) -> Vec<String> {
    lines.iter().flat_map(|line| line.splitn(2, ' ')).map(str::to_owned).collect()
}

fn pairs(env: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[test]
fn the_sidecar_gets_the_arguments_that_a_real_cli_gives() {
    let run = ours(&Choices::of_the_cli(PORTS, Path::new("/home/user/.dapr")));
    let resources = checkout().join("components/redis").display().to_string();
    let expected = words(&[
        "--config /home/user/.dapr/config.yaml",
        "--app-protocol grpc",
        "--dapr-listen-addresses 127.0.0.1",
        "--app-max-concurrency -1",
        "--placement-host-address localhost:50005",
        &format!("--resources-path {resources}"),
        "--max-body-size 4Mi",
        "--read-buffer-size 4Ki",
        "--enable-app-health-check",
        "--app-health-probe-interval 5",
        "--app-health-probe-timeout 2000",
        "--app-health-threshold 3",
        "--scheduler-host-address localhost:50006",
        "--app-id order-service",
        "--app-port 50051",
        "--dapr-http-port 40001",
        "--dapr-grpc-port 40002",
        "--profile-port -1",
        "--metrics-port 40003",
        "--dapr-internal-grpc-port 40004",
    ]);
    assert_eq!(run.daprd_args, expected);
    assert_eq!(run.directory, checkout());
}

#[test]
fn the_service_gets_the_environment_that_a_real_cli_gives() {
    let run = ours(&Choices::of_the_cli(PORTS, Path::new("/home/user/.dapr")));
    assert_eq!(
        pairs(&run.app_env),
        [
            ("APP_CHANNEL_ADDRESS", ""),
            ("APP_ID", "order-service"),
            ("APP_PORT", "50051"),
            ("APP_PROTOCOL", "grpc"),
            ("BACKSTOP_CONSUMER", "order-service"),
            ("BACKSTOP_PUBSUB", "orderpubsub"),
            ("BACKSTOP_STORE_URL", "sqlite://.run/backstop.db"),
            ("DAPR_GRPC_PORT", "40002"),
            ("DAPR_HTTP_PORT", "40001"),
            ("DAPR_METRICS_PORT", "40003"),
        ]
    );
}

#[test]
fn the_service_understands_the_environment_of_a_real_cli() {
    let run = ours(&Choices::of_the_cli(PORTS, Path::new("/home/user/.dapr")));
    let config = Config::from_vars(run.app_env).unwrap();
    assert_eq!(config.sidecar.app_port, 50_051);
    assert_eq!(config.sidecar.grpc_endpoint, "http://127.0.0.1:40002");
    assert_eq!(config.consumer.as_deref(), Some("order-service"));
    assert_eq!(config.pubsub, "orderpubsub");
    assert_eq!(config.store, StoreUrl::Sqlite(PathBuf::from(".run/backstop.db")));
}

#[test]
fn the_service_is_what_the_cli_starts() {
    let template = Template::read(&checkout().join("dapr.yaml")).unwrap();
    let app = template.app(None).unwrap();
    assert_eq!(app.command, ["cargo", "run", "--quiet", "--", "serve"]);
}

/// Every file of a resources directory is read as a resource.
#[test]
fn the_data_is_kept_out_of_the_resources() {
    let run = ours(&Choices::without_init(PORTS));
    let StoreUrl::Sqlite(path) = Config::from_vars(run.app_env).unwrap().store else {
        panic!("the store is a file");
    };
    assert!(!run.directory.join(path).starts_with(checkout().join("components")));
}

#[test]
fn where_dapr_init_never_ran_nothing_of_it_is_asked_for() {
    let run = ours(&Choices::without_init(PORTS));
    for name in ["--config", "--placement-host-address", "--scheduler-host-address"] {
        assert!(!run.daprd_args.iter().any(|arg| arg == name), "{name}");
    }
}

#[test]
fn choices_go_before_the_template() {
    let run = ours(&Choices {
        app_id: Some("another".to_owned()),
        app_port: Some(40_051),
        resources_paths: Some(vec!["components/in-memory".into(), "/elsewhere".into()]),
        app_health_check: Some(false),
        env: BTreeMap::from([("BACKSTOP_PUBSUB".to_owned(), "otherpubsub".to_owned())]),
        ..Choices::without_init(PORTS)
    });
    let args = run.daprd_args.join(" ");
    let in_memory = checkout().join("components/in-memory").display().to_string();
    assert!(
        args.contains(&format!("--resources-path {in_memory} --resources-path /elsewhere")),
        "{args}"
    );
    assert!(args.contains("--app-id another --app-port 40051"), "{args}");
    assert!(!args.contains("--enable-app-health-check"), "{args}");
    let env = &run.app_env;
    assert_eq!((env["APP_ID"].as_str(), env["APP_PORT"].as_str()), ("another", "40051"));
    assert_eq!(env["BACKSTOP_PUBSUB"], "otherpubsub");
    assert_eq!(env["BACKSTOP_CONSUMER"], "order-service");
}

#[test]
fn common_fills_what_an_app_leaves_open() {
    let run = run("
version: 1
common:
  appProtocol: grpc
  logLevel: debug
  resourcesPath: shared/resources
  appHealthThreshold: 7
  env: {LEVEL: 3, TEST: common, ON: true}
apps:
  - appDirPath: ./orders/../billing/
    logLevel: warn
    env: {TEST: app}
");
    assert_eq!(run.directory, Path::new("/app/billing"));
    assert_eq!(
        run.daprd_args,
        words(&[
            "--app-protocol grpc",
            "--log-level warn",
            "--app-max-concurrency -1",
            "--resources-path /app/shared/resources",
            "--max-body-size 4Mi",
            "--read-buffer-size 4Ki",
            "--app-health-threshold 7",
            "--app-id billing",
            "--app-port 0",
            "--dapr-http-port 40001",
            "--dapr-grpc-port 40002",
            "--profile-port -1",
            "--metrics-port 40003",
            "--dapr-internal-grpc-port 40004"
        ])
    );
    assert_eq!(
        pairs(&run.app_env),
        [
            ("APP_CHANNEL_ADDRESS", ""),
            ("APP_ID", "billing"),
            ("APP_PROTOCOL", "grpc"),
            ("DAPR_GRPC_PORT", "40002"),
            ("DAPR_HTTP_PORT", "40001"),
            ("DAPR_METRICS_PORT", "40003"),
            ("LEVEL", "3"),
            ("ON", "true"),
            ("TEST", "app"),
        ]
    );
}

#[test]
fn ports_that_the_template_sets_are_kept() {
    let run = run("
version: 1
apps:
  - appDirPath: .
    appID: orders
    appPort: 6001
    daprHTTPPort: 6002
    daprGRPCPort: 6003
    enableProfiling: true
    placementHostAddress: ''
    schedulerHostAddress: there
");
    let args = run.daprd_args.join(" ");
    for part in [
        "--app-port 6001 --dapr-http-port 6002 --dapr-grpc-port 6003 --profile-port 40005",
        "--enable-profiling",
        "--scheduler-host-address there:50006",
    ] {
        assert!(args.contains(part), "{part} in {args}");
    }
    assert!(!args.contains("--placement-host-address"), "{args}");
    assert_eq!((run.ports.http, run.ports.metrics, run.app_port), (6002, 40_003, 6001));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, told) in [
        ("version: 1\napps:\n  - appDirPath: .\n    appPrt: 1\n", ["dapr.yaml:4:5", "appPrt"]),
        ("version: 1\ncommon:\n  logLevl: x\napps: []\n", ["dapr.yaml:3:3", "logLevl"]),
        ("version: 1\napps:\n  - appDirPath: .\n    appPort: many\n", ["dapr.yaml:4:14", "many"]),
        ("version: 1\napps: [\n", ["dapr.yaml:", ""]),
        ("apps: []\n", ["dapr.yaml:", "version"]),
        ("version: 2\napps: []\n", ["dapr.yaml", "version: it is 2"]),
        ("version: 1\napps:\n  - appID: orders\n", ["orders", "appDirPath is missing"]),
        ("version: 1\ncommon: {appPort: 1}\napps: []\n", ["common", "appPort belongs to an app"]),
    ] {
        let error = format!("{:#}", parse(text).unwrap_err());
        for part in told {
            assert!(error.contains(part), "`{part}` is not in `{error}`, for:\n{text}");
        }
    }
}

#[test]
fn an_app_is_chosen_by_its_id() {
    let two = "version: 1\napps:\n  - {appID: a, appDirPath: .}\n  - {appID: b, appDirPath: .}\n";
    let template = parse(two).unwrap();
    assert_eq!(template.app(Some("b")).unwrap().id, "b");
    assert!(template.app(Some("c")).unwrap_err().to_string().contains("`c`"));
    assert!(template.app(None).unwrap_err().to_string().contains("several"));
    assert!(parse("version: 1\napps: []\n").unwrap().app(None).is_err());
}
