use std::collections::BTreeSet;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::variables::ALL;
use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_vars(variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
}

fn problems(variables: &[(&str, &str)]) -> String {
    read(variables).map(|_| ()).expect_err("a problem").to_string()
}

#[test]
fn an_empty_environment_gives_the_defaults() {
    let config = read(&[]).unwrap();
    assert_eq!(config.store, StoreUrl::Sqlite("backstop.db".into()));
    assert_eq!(config.http_listen.to_string(), "127.0.0.1:8080");
    assert_eq!((config.consumer, config.orders_inventory_url), (None, None));
    assert_eq!(config.pubsub, "orderpubsub");
    assert_eq!(config.recovery, Limits::default());
    assert_eq!(config.recovery_concurrency_max, 4);
    assert_eq!(config.delivery, DeliveryLimits::default());
    assert_eq!(config.drain_timeout, Duration::from_secs(20));
    assert_eq!(config.sidecar.grpc_endpoint, "http://127.0.0.1:50001");
    assert_eq!((config.sidecar.app_port, config.sidecar.http_port), (50051, 3500));
    assert_eq!(config.sidecar.app_token_mode, AppTokenMode::Require);
    assert!(config.sidecar.app_api_token.is_none() && config.sidecar.dapr_api_token.is_none());
    assert_eq!(
        (config.telemetry.log.as_str(), config.telemetry.log_format),
        ("info", LogFormat::Auto)
    );
    assert_eq!(config.telemetry.otlp_endpoint, None);
    assert_eq!(config.telemetry.service_name, "backstop");
}

#[test]
fn every_example_is_a_good_value_and_is_the_value_in_effect() {
    let all: Vec<_> = ALL.iter().map(|variable| (variable.name, variable.example)).collect();
    let config = read(&all).unwrap();
    assert!(config.effective().iter().all(|setting| setting.source == Origin::Environment));
    assert_eq!(config.sidecar.app_api_token.unwrap().expose_secret(), "a-long-random-token");
    assert_eq!(config.consumer.as_deref(), Some("order-service"));
    assert_eq!(config.telemetry.otlp_endpoint.as_deref(), Some("http://127.0.0.1:4317"));
}

#[test]
fn every_variable_is_read_and_all_problems_are_told_at_once_with_an_example_and_no_value() {
    // A line break within is wrong for every kind of variable.
    let bad: Vec<_> = ALL.iter().map(|variable| (variable.name, "hunter2\nhunter2")).collect();
    let error = read(&bad).map(|_| ()).unwrap_err();
    let named: BTreeSet<_> = error.problems.iter().map(|problem| problem.name.as_str()).collect();
    assert_eq!(named, ALL.iter().map(|variable| variable.name).collect());
    assert_eq!(error.problems.len(), ALL.len());
    for variable in ALL {
        let example = format!("for example {}={}", variable.name, variable.example);
        assert!(error.to_string().contains(&example), "{example}");
    }
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[test]
fn an_empty_value_is_not_set() {
    let empty: Vec<_> = ALL.iter().map(|variable| (variable.name, " ")).collect();
    let config = read(&empty).unwrap();
    assert!(config.effective().iter().all(|setting| setting.source == Origin::Default));
}

#[test]
fn seconds_take_decimals_and_nothing_else() {
    let first = |text| read(&[("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", text)]);
    assert_eq!(first("0.5").unwrap().recovery.backoff.first, Duration::from_millis(500));
    assert_eq!(first(" 7 ").unwrap().recovery.backoff.first, Duration::from_secs(7));
    for bad in ["0", "10s", "-1", "1e3", "inf", "NaN", "1,5", "1.2.3", ".", "86401"] {
        assert!(first(bad).is_err(), "{bad}");
    }
}

#[test]
fn numbers_outside_their_bounds_are_refused() {
    for (name, bad) in [
        ("BACKSTOP_ATTEMPTS_LIVE_MAX", "0"),
        ("BACKSTOP_ATTEMPTS_LIVE_MAX", "1001"),
        ("BACKSTOP_RECOVERIES_MAX", "1001"),
        ("BACKSTOP_RECOVERIES_MAX", "99999999999999999999999"),
        ("BACKSTOP_DECODE_BYTES_MAX", "64MiB"),
        ("APP_PORT", "0"),
        ("DAPR_GRPC_PORT", "65536"),
    ] {
        let text = problems(&[(name, bad)]);
        assert!(text.contains(name) && text.contains("for example"), "{text}");
    }
    assert_eq!(read(&[("BACKSTOP_RECOVERIES_MAX", "0")]).unwrap().recovery.recoveries_max, 0);
}

#[test]
fn the_lease_is_at_least_twice_the_handler_timeout() {
    let text = problems(&[("BACKSTOP_HANDLER_TIMEOUT_SECS", "40.5")]);
    assert!(text.contains("BACKSTOP_LEASE_SECS: must be at least twice"), "{text}");
    assert!(text.contains("for example BACKSTOP_LEASE_SECS=81"), "{text}");
    read(&[("BACKSTOP_HANDLER_TIMEOUT_SECS", "40.5"), ("BACKSTOP_LEASE_SECS", "81")]).unwrap();
}

#[test]
fn the_longest_backoff_is_not_below_the_first_and_the_ports_differ() {
    let text = problems(&[
        ("BACKSTOP_RECOVERY_BACKOFF_FIRST_SECS", "5"),
        ("BACKSTOP_RECOVERY_BACKOFF_MAX_SECS", "4"),
        ("BACKSTOP_HTTP_LISTEN", "0.0.0.0:50051"),
    ]);
    assert!(text.contains("2 problems"), "{text}");
    assert!(text.contains("BACKSTOP_RECOVERY_BACKOFF_MAX_SECS: must not be below"), "{text}");
    assert!(text.contains("BACKSTOP_HTTP_LISTEN: must not use the port"), "{text}");
}

#[test]
fn a_variable_that_is_wrong_by_itself_is_told_once() {
    let text = problems(&[("BACKSTOP_LEASE_SECS", "soon")]);
    assert!(text.starts_with("The configuration has a problem:"), "{text}");
}

#[test]
fn a_store_is_a_sqlite_file() {
    let store = |text| read(&[("BACKSTOP_STORE_URL", text)]).map(|config| config.store);
    assert_eq!(store("sqlite:///var/a.db").unwrap(), StoreUrl::Sqlite("/var/a.db".into()));
    assert_eq!(store("sqlite://./a.db").unwrap(), StoreUrl::Sqlite("./a.db".into()));
    for bad in [
        "a.db",
        "sqlite://",
        "sqlite:a.db",
        "sqlite://dir/",
        "sqlite://:memory:",
        "sqlite://a.db?mode=memory",
    ] {
        assert!(store(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_store_is_a_postgresql_database_whose_password_is_never_shown() {
    let store = |text| read(&[("BACKSTOP_STORE_URL", text)]).map(|config| config.store);
    let url = "postgres://me:hunter2@db/orders";
    let StoreUrl::Postgres(settings) = store(url).unwrap() else { panic!("{url}") };
    assert_eq!((settings.schema.as_str(), settings.pool_size), ("backstop", 8));
    let config = read(&[("BACKSTOP_STORE_URL", url)]).unwrap();
    let shown = format!("{config:?}");
    assert!(shown.contains("postgres://me:***@db/orders") && !shown.contains("hunter2"), "{shown}");
    for bad in [
        "postgres://me:hunter2@db",
        "postgres:///orders?password=hunter2",
        "postgres://me:hunter2@db:port/orders",
        "postgres://me:hunter2@db/orders?sslmode=prefer",
        "postgres://me:hunter2@db/orders?nonsense=hunter2",
    ] {
        let text = problems(&[("BACKSTOP_STORE_URL", bad)]);
        assert!(!text.contains("hunter2"), "{text}");
    }
    for bad in ["", "1a", "pg_x", "A", "a-b", "a.b", "a\"b"] {
        let wrong = read(&[("BACKSTOP_STORE_SCHEMA", bad)]);
        assert_eq!(wrong.is_err(), !bad.is_empty(), "{bad}");
    }
}

#[test]
fn a_url_carries_no_credentials_and_loses_its_last_slash() {
    let url = |text| read(&[("BACKSTOP_ORDERS_INVENTORY_URL", text)]);
    let good = url("https://stock.example:8443/v1/").unwrap().orders_inventory_url;
    assert_eq!(good.as_deref(), Some("https://stock.example:8443/v1"));
    assert!(url("http://[::1]:9090").is_ok() && url("http://[::1]").is_ok());
    for bad in
        ["stock:80", "ftp://a", "http://", "http://:80", "http://a:0", "http://a b", "http://a?b"]
    {
        assert!(url(bad).is_err(), "{bad}");
    }
    let text = problems(&[("BACKSTOP_ORDERS_INVENTORY_URL", "http://me:hunter2@stock")]);
    assert!(!text.contains("hunter2"), "{text}");
    assert!(problems(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:4317")]).contains("without TLS"));
}

#[test]
fn the_sidecar_endpoint_goes_before_its_port() {
    let port = read(&[("DAPR_GRPC_PORT", "41001")]).unwrap();
    assert_eq!(port.sidecar.grpc_endpoint, "http://127.0.0.1:41001");
    let both = [("DAPR_GRPC_PORT", "41001"), ("DAPR_GRPC_ENDPOINT", "http://dapr:50001/")];
    assert_eq!(read(&both).unwrap().sidecar.grpc_endpoint, "http://dapr:50001");
}

#[test]
fn a_log_directive_that_would_silence_everything_is_refused() {
    for good in
        ["info", "INFO", "off", "warn,backstop=debug", "backstop::relay=trace", "info,h2=off"]
    {
        assert!(read(&[("BACKSTOP_LOG", good)]).is_ok(), "{good}");
    }
    for bad in ["inof", "info,", "backstop", "backstop=loud"] {
        assert!(read(&[("BACKSTOP_LOG", bad)]).is_err(), "{bad}");
    }
}

#[test]
fn an_unknown_name_of_ours_is_refused_with_the_nearest_known_one() {
    let text = problems(&[("BACKSTOP_RECOVERY_MAX", "3")]);
    assert!(text.contains("BACKSTOP_RECOVERY_MAX: is not a variable"), "{text}");
    assert!(text.contains("did you mean BACKSTOP_RECOVERIES_MAX?"), "{text}");
    assert!(problems(&[("backstop_pubsub", "a")]).contains("did you mean BACKSTOP_PUBSUB?"));
    assert!(!problems(&[("BACKSTOP_SOMETHING_QUITE_DIFFERENT", "a")]).contains("did you mean"));
    read(&[("APP_ID", "order-service"), ("PATH", "/bin"), ("DAPR_SOMETHING", "1")]).unwrap();
}

#[test]
fn what_kubernetes_sets_for_a_service_of_our_name_is_passed_over() {
    read(&[
        ("BACKSTOP_SERVICE_HOST", "10.0.0.1"),
        ("BACKSTOP_SERVICE_PORT", "8080"),
        ("BACKSTOP_CONSOLE_SERVICE_PORT_HTTP", "8080"),
        ("BACKSTOP_PORT", "tcp://10.0.0.1:8080"),
        ("BACKSTOP_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("BACKSTOP_PORT_8080_TCP_PROTO", "tcp"),
        ("BACKSTOP_PORT_8080_TCP_PORT", "8080"),
        ("BACKSTOP_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ])
    .unwrap();
}

#[test]
fn a_secret_is_never_shown_and_never_guessed_at() {
    let config = read(&[("APP_API_TOKEN", "hunter2"), ("DAPR_API_TOKEN", "hunter3")]).unwrap();
    let shown = format!("{config:?} {}", serde_json::to_string(&config.effective()).unwrap());
    assert!(!shown.contains("hunter") && shown.contains("(set)"), "{shown}");
    let text = problems(&[("APP_API_TOKEN", "hunter2\n")]);
    assert!(text.contains("line break") && !text.contains("hunter2"), "{text}");
}

#[test]
fn a_value_that_is_not_utf_8_is_a_problem_of_its_variable() {
    let given = [("BACKSTOP_PUBSUB".to_owned(), Err(())), ("LANG".to_owned(), Err(()))];
    let error = Config::from_given(given.into_iter()).map(|_| ()).unwrap_err();
    assert_eq!(error.problems.len(), 1);
    assert!(error.to_string().contains("BACKSTOP_PUBSUB: is not UTF-8"));
}

#[test]
fn the_committed_reference_page_is_the_one_the_table_makes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/CONFIGURATION.md");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == reference_page(),
        "run: cargo run -- config --reference > docs/CONFIGURATION.md\n\n{}",
        reference_page()
    );
}

proptest! {
    #[test]
    fn no_environment_panics(variables in proptest::collection::vec((0..ALL.len(), ".*"), 0..6)) {
        let variables = variables.into_iter().map(|(n, value)| (ALL[n].name.to_owned(), value));
        Config::from_vars(variables).ok();
    }

    #[test]
    fn no_name_panics(name in "BACKSTOP_.*") {
        Config::from_vars([(name, String::new())]).ok();
    }
}
