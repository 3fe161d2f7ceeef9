//! Reads a multi-app run template (`dapr.yaml`) and says what `dapr run -f` makes of an app in it:
//! the arguments of its sidecar and the environment of the app.
//!
//! It follows github.com/dapr/cli: which fields there are, what they default to and the order of
//! the arguments from `RunConfig`, `SharedRunConfig`, `Validate`, `getArgs` and `getEnv` in
//! pkg/standalone/run.go; what `common` and the paths mean from
//! pkg/runfileconfig/run_file_config_parser.go; what is set besides from `executeRun` in
//! cmd/run.go. A field the CLI does not know is an error here, where the CLI ignores it.

#![allow(dead_code, reason = "the demo and the tests each use a part of this file")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;

/// Where the services are that `dapr init` starts, and on which ports.
const CONTROL_PLANE_HOST: &str = "localhost";
const PLACEMENT_PORT: u16 = 50_005;
const SCHEDULER_PORT: u16 = 50_006;

/// A template, parsed and checked.
#[derive(Debug)]
pub struct Template {
    /// The directory that relative paths count from.
    base: PathBuf,
    common: Section,
    apps: Vec<Section>,
}

/// One app with everything the template says about it.
#[derive(Clone, Debug)]
pub struct App {
    /// `appID`, or the name of the app's directory.
    pub id: String,
    /// Where the sidecar and the app run.
    pub directory: PathBuf,
    /// The app's command line.
    pub command: Vec<String>,
    section: Section,
}

/// What the CLI decides when it starts an app, and what may differ from the template.
#[derive(Clone, Debug)]
pub struct Choices {
    /// The ports that the CLI picks.
    pub ports: Ports,
    /// The sidecar's `--config`: `~/.dapr/config.yaml` for the CLI when the template has none.
    /// `None` leaves it out, as one must where `dapr init` never ran.
    pub config_file: Option<PathBuf>,
    /// Whether the sidecar is told of the placement and scheduler services of `dapr init`, when
    /// the template does not name any.
    pub control_plane: bool,
    /// Another app id.
    pub app_id: Option<String>,
    /// Another port for the app.
    pub app_port: Option<u16>,
    /// Other resource directories; relative ones count from the app's directory.
    pub resources_paths: Option<Vec<PathBuf>>,
    /// Whether the sidecar checks the app's health.
    pub app_health_check: Option<bool>,
    /// Variables for the app; they win over those of the template.
    pub env: BTreeMap<String, String>,
}

/// The sidecar's ports: the CLI takes free ones where the template sets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// `daprHTTPPort`
    pub http: u16,
    /// `daprGRPCPort`
    pub grpc: u16,
    /// `metricsPort`
    pub metrics: u16,
    /// `daprInternalGRPCPort`
    pub internal_grpc: u16,
    /// `profilePort`; only asked for with `enableProfiling`.
    pub profile: u16,
}

/// How an app and its sidecar are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sidecar's arguments.
    pub daprd_args: Vec<String>,
    /// What is added to the app's environment. The sidecar gets nothing of it.
    pub app_env: BTreeMap<String, String>,
    /// Where both run.
    pub directory: PathBuf,
    /// The ports in effect.
    pub ports: Ports,
    /// The app's port; 0 when it listens on none.
    pub app_port: u16,
}

impl Choices {
    /// What the CLI does, after `dapr init`.
    pub fn of_the_cli(ports: Ports, dapr_directory: &Path) -> Self {
        Self {
            config_file: Some(dapr_directory.join("config.yaml")),
            control_plane: true,
            ..Self::without_init(ports)
        }
    }

    /// The same where `dapr init` never ran: no configuration file, no placement, no scheduler.
    pub fn without_init(ports: Ports) -> Self {
        Self {
            ports,
            config_file: None,
            control_plane: false,
            app_id: None,
            app_port: None,
            resources_paths: None,
            app_health_check: None,
            env: BTreeMap::new(),
        }
    }
}

impl Template {
    /// Reads the template at this path.
    ///
    /// # Errors
    /// When it cannot be read, or with the file, the line and what is wrong there.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        let path = std::path::absolute(path)?;
        let base = path.parent().context("the template has no directory")?;
        Self::parse(&text, &path.display().to_string(), base)
    }

    /// Parses a template; `name` stands for it in errors, relative paths count from `base`.
    ///
    /// # Errors
    /// With the name, the line and what is wrong there.
    pub fn parse(text: &str, name: &str, base: &Path) -> anyhow::Result<Self> {
        let file: RunFile =
            serde_saphyr::from_str(text).map_err(|error| misread(text, name, &error))?;
        file.check().with_context(|| name.to_owned())?;
        let RunFile { common, apps, .. } = file;
        Ok(Self { base: base.to_owned(), common, apps })
    }

    /// The app with this id, or the only one there is.
    ///
    /// # Errors
    /// When there is none, or the choice is not clear.
    pub fn app(&self, id: Option<&str>) -> anyhow::Result<App> {
        let mut apps = self.apps.iter().map(|section| self.merged(section));
        let Some(id) = id else {
            let only = apps.next().context("the template has no app")?;
            anyhow::ensure!(apps.next().is_none(), "the template has several apps: name one");
            return Ok(only);
        };
        apps.find(|app| app.id == id).with_context(|| format!("the template has no app `{id}`"))
    }

    fn merged(&self, own: &Section) -> App {
        let mut section = own.clone();
        let directory = clean_join(&self.base, own.app_dir_path.as_deref().unwrap_or_default());
        section.resolve_paths(&directory);
        let mut common = self.common.clone();
        common.resolve_paths(&self.base);
        // An app without resources of its own takes `.dapr/resources` in its directory before
        // those of `common`; what ~/.dapr has is never taken here.
        let local = directory.join(".dapr/resources");
        if section.resources_paths.is_empty() && local.is_dir() {
            section.resources_paths.push(text(&local));
        }
        let local = directory.join(".dapr/config.yaml");
        if section.config_file_path.is_empty() && local.is_file() {
            section.config_file_path = text(&local);
        }
        section.fill_from(&common);
        let named = (!section.app_id.is_empty()).then(|| section.app_id.clone());
        let id = named.or_else(|| Some(directory.file_name()?.to_string_lossy().into_owned()));
        App { id: id.unwrap_or_default(), directory, command: section.command.clone(), section }
    }
}

impl App {
    /// How the CLI starts it, with these choices.
    pub fn run(&self, choices: &Choices) -> Run {
        let mut section = self.section.clone();
        let id = choices.app_id.as_ref().unwrap_or(&self.id);
        if let Some(paths) = &choices.resources_paths {
            let paths = paths.iter().map(|path| text(&self.directory.join(path)));
            section.resources_paths = paths.collect();
        }
        if let Some(check) = choices.app_health_check {
            section.enable_app_health_check = check;
        }
        let app_port = choices.app_port.unwrap_or(section.app_port.unwrap_or(0));
        let or_picked = |set: Option<u16>, picked| set.filter(|&port| port > 0).unwrap_or(picked);
        let ports = Ports {
            http: or_picked(section.dapr_http_port, choices.ports.http),
            grpc: or_picked(section.dapr_grpc_port, choices.ports.grpc),
            metrics: or_picked(section.metrics_port, choices.ports.metrics),
            internal_grpc: or_picked(section.dapr_internal_grpc_port, choices.ports.internal_grpc),
            profile: or_picked(section.profile_port, choices.ports.profile),
        };
        let daprd_args = section.daprd_args(id, app_port, ports, choices);
        let app_env = section.app_env(id, app_port, ports, choices);
        Run { daprd_args, app_env, directory: self.directory.clone(), ports, app_port }
    }
}

/// `dapr.yaml:4:14: invalid u16, in: appPort: many`
fn misread(text: &str, name: &str, error: &serde_saphyr::Error) -> anyhow::Error {
    let problem = error.without_snippet().to_string();
    let Some(at) = error.location() else { return anyhow::anyhow!("{name}: {problem}") };
    let (line, column) = (at.line(), at.column());
    let place = format!(" at line {line}, column {column}");
    let problem = problem.strip_suffix(&place).unwrap_or(&problem);
    let index = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
    let source = text.lines().nth(index).unwrap_or_default().trim();
    anyhow::anyhow!("{name}:{line}:{column}: {problem}, in: {source}")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunFile {
    version: u32,
    #[serde(default)]
    name: String,
    #[serde(default)]
    common: Section,
    apps: Vec<Section>,
}

impl RunFile {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.version == 1, "version: it is {}, and 1 is known", self.version);
        let app_only = self.common.app_only();
        anyhow::ensure!(app_only.is_empty(), "common: {} belongs to an app", app_only.join(", "));
        for (number, app) in (1..).zip(&self.apps) {
            anyhow::ensure!(
                app.app_dir_path.is_some(),
                "app {number} ({}): appDirPath is missing",
                app.app_id
            );
        }
        Ok(())
    }
}

/// The fields of an app; those up to `schedulerHostAddress` may stand in `common` too.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[allow(clippy::struct_excessive_bools, reason = "the CLI's fields")]
struct Section {
    config_file_path: String,
    app_protocol: String,
    api_listen_addresses: String,
    enable_profiling: bool,
    log_level: String,
    app_max_concurrency: i64,
    placement_host_address: Option<String>,
    resources_path: String,
    resources_paths: Vec<String>,
    #[serde(rename = "appSSL")]
    app_ssl: bool,
    max_body_size: String,
    read_buffer_size: String,
    enable_app_health_check: bool,
    app_health_check_path: String,
    app_health_probe_interval: u32,
    app_health_probe_timeout: u32,
    app_health_threshold: u32,
    enable_api_logging: bool,
    runtime_path: String,
    env: BTreeMap<String, String>,
    daprd_log_destination: String,
    app_log_destination: String,
    scheduler_host_address: Option<String>,

    #[serde(rename = "appID")]
    app_id: String,
    app_dir_path: Option<String>,
    app_channel_address: String,
    app_port: Option<u16>,
    #[serde(rename = "daprHTTPPort")]
    dapr_http_port: Option<u16>,
    #[serde(rename = "daprGRPCPort")]
    dapr_grpc_port: Option<u16>,
    profile_port: Option<u16>,
    command: Vec<String>,
    metrics_port: Option<u16>,
    unix_domain_socket: String,
    #[serde(rename = "daprInternalGRPCPort")]
    dapr_internal_grpc_port: Option<u16>,
}

impl Section {
    /// The fields that are set though they belong to an app alone.
    fn app_only(&self) -> Vec<&'static str> {
        [
            ("appID", !self.app_id.is_empty()),
            ("appDirPath", self.app_dir_path.is_some()),
            ("appChannelAddress", !self.app_channel_address.is_empty()),
            ("appPort", self.app_port.is_some()),
            ("daprHTTPPort", self.dapr_http_port.is_some()),
            ("daprGRPCPort", self.dapr_grpc_port.is_some()),
            ("profilePort", self.profile_port.is_some()),
            ("command", !self.command.is_empty()),
            ("metricsPort", self.metrics_port.is_some()),
            ("unixDomainSocket", !self.unix_domain_socket.is_empty()),
            ("daprInternalGRPCPort", self.dapr_internal_grpc_port.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, set)| set.then_some(name))
        .collect()
    }

    /// `resolvePathToAbsAndValidate` and the merge of `resourcesPath` into `resourcesPaths`.
    fn resolve_paths(&mut self, directory: &Path) {
        for path in self.resources_paths.iter_mut().chain([&mut self.config_file_path]) {
            if !path.is_empty() {
                *path = text(&clean_join(directory, path));
            }
        }
        if !self.resources_path.is_empty() {
            self.resources_paths.push(text(&clean_join(directory, &self.resources_path)));
        }
    }

    /// `mergeCommonAndAppsSharedRunConfig`: what is empty, zero or false is taken from `common`;
    /// of the environment, each variable that is not there.
    fn fill_from(&mut self, common: &Self) {
        fn fill<T: Clone + Default + PartialEq>(own: &mut T, common: &T) {
            if *own == T::default() {
                own.clone_from(common);
            }
        }
        fill(&mut self.config_file_path, &common.config_file_path);
        fill(&mut self.app_protocol, &common.app_protocol);
        fill(&mut self.api_listen_addresses, &common.api_listen_addresses);
        fill(&mut self.enable_profiling, &common.enable_profiling);
        fill(&mut self.log_level, &common.log_level);
        fill(&mut self.app_max_concurrency, &common.app_max_concurrency);
        fill(&mut self.placement_host_address, &common.placement_host_address);
        fill(&mut self.resources_paths, &common.resources_paths);
        fill(&mut self.app_ssl, &common.app_ssl);
        fill(&mut self.max_body_size, &common.max_body_size);
        fill(&mut self.read_buffer_size, &common.read_buffer_size);
        fill(&mut self.enable_app_health_check, &common.enable_app_health_check);
        fill(&mut self.app_health_check_path, &common.app_health_check_path);
        fill(&mut self.app_health_probe_interval, &common.app_health_probe_interval);
        fill(&mut self.app_health_probe_timeout, &common.app_health_probe_timeout);
        fill(&mut self.app_health_threshold, &common.app_health_threshold);
        fill(&mut self.enable_api_logging, &common.enable_api_logging);
        fill(&mut self.scheduler_host_address, &common.scheduler_host_address);
        for (name, value) in &common.env {
            self.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// `getArgs`: the fields in the order of the CLI's structures, those in `SharedRunConfig` first.
    /// Sizes are passed on as they are written; the CLI brings them into their shortest form.
    fn daprd_args(&self, id: &str, app_port: u16, ports: Ports, choices: &Choices) -> Vec<String> {
        let mut args = Arguments(Vec::new());
        let config_file = choices.config_file.as_deref().map(text).unwrap_or_default();
        args.text("--config", or(&self.config_file_path, &config_file));
        args.text("--app-protocol", or(&self.app_protocol, "http"));
        args.text("--dapr-listen-addresses", &self.api_listen_addresses);
        args.flag("--enable-profiling", self.enable_profiling);
        args.text("--log-level", &self.log_level);
        let unlimited = self.app_max_concurrency < 1;
        let concurrency = if unlimited { -1 } else { self.app_max_concurrency };
        args.text("--app-max-concurrency", &concurrency.to_string());
        let control_plane = if choices.control_plane { CONTROL_PLANE_HOST } else { "" };
        let placement = self.placement_host_address.as_deref().unwrap_or(control_plane);
        args.text("--placement-host-address", &with_port(placement, PLACEMENT_PORT));
        for path in &self.resources_paths {
            args.text("--resources-path", path);
        }
        args.flag("--app-ssl", self.app_ssl);
        args.text("--max-body-size", or(&self.max_body_size, "4Mi"));
        args.text("--read-buffer-size", or(&self.read_buffer_size, "4Ki"));
        args.flag("--enable-app-health-check", self.enable_app_health_check);
        args.text("--app-health-check-path", &self.app_health_check_path);
        args.number_unless_0("--app-health-probe-interval", self.app_health_probe_interval);
        args.number_unless_0("--app-health-probe-timeout", self.app_health_probe_timeout);
        args.number_unless_0("--app-health-threshold", self.app_health_threshold);
        args.flag("--enable-api-logging", self.enable_api_logging);
        // Unlike placement, the scheduler cannot be switched off by an empty address.
        let scheduler = self.scheduler_host_address.as_deref().unwrap_or_default();
        let scheduler = with_port(or(scheduler, control_plane), SCHEDULER_PORT);
        args.text("--scheduler-host-address", &scheduler);

        args.text("--app-id", id);
        if self.app_channel_address != "127.0.0.1" {
            args.text("--app-channel-address", &self.app_channel_address);
        }
        args.text("--app-port", &app_port.to_string());
        args.text("--dapr-http-port", &ports.http.to_string());
        args.text("--dapr-grpc-port", &ports.grpc.to_string());
        let profile = self.enable_profiling.then(|| ports.profile.to_string());
        args.text("--profile-port", &profile.unwrap_or_else(|| "-1".to_owned()));
        args.text("--metrics-port", &ports.metrics.to_string());
        args.text("--unix-domain-socket", &self.unix_domain_socket);
        args.text("--dapr-internal-grpc-port", &ports.internal_grpc.to_string());
        args.0
    }

    /// `getEnv`: what is set besides the CLI's own environment; the template's `env` goes last.
    fn app_env(
        &self,
        id: &str,
        app_port: u16,
        ports: Ports,
        choices: &Choices,
    ) -> BTreeMap<String, String> {
        let protocol = match (self.app_protocol.to_lowercase().as_str(), self.app_ssl) {
            ("" | "http", false) => "http",
            ("http", true) | ("https", _) => "https",
            ("grpc", false) => "grpc",
            ("grpc", true) | ("grpcs", _) => "grpcs",
            ("h2c", _) => "h2c",
            _ => "",
        };
        let mut env = BTreeMap::from([
            ("APP_ID", id.to_owned()),
            ("APP_CHANNEL_ADDRESS", self.app_channel_address.clone()),
            ("DAPR_HTTP_PORT", ports.http.to_string()),
            ("DAPR_GRPC_PORT", ports.grpc.to_string()),
            ("DAPR_METRICS_PORT", ports.metrics.to_string()),
        ]);
        if app_port > 0 {
            env.insert("APP_PORT", app_port.to_string());
        }
        if !protocol.is_empty() {
            env.insert("APP_PROTOCOL", protocol.to_owned());
        }
        let mut env: BTreeMap<String, String> =
            env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        env.extend(self.env.clone());
        env.extend(choices.env.clone());
        env
    }
}

struct Arguments(Vec<String>);

impl Arguments {
    fn text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.0.extend([name.to_owned(), value.to_owned()]);
        }
    }

    fn number_unless_0(&mut self, name: &str, value: u32) {
        if value != 0 {
            self.text(name, &value.to_string());
        }
    }

    fn flag(&mut self, name: &str, set: bool) {
        if set {
            self.0.push(name.to_owned());
        }
    }
}

fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    if value.is_empty() { default } else { value }
}

/// An address with its port; an empty one stays empty.
fn with_port(address: &str, port: u16) -> String {
    let address = address.trim();
    if address.is_empty() || address.contains(':') {
        return address.to_owned();
    }
    format!("{address}:{port}")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Go's `filepath.Join` with a cleaned path: no `.` in it, `..` taken back.
fn clean_join(directory: &Path, path: &str) -> PathBuf {
    use std::path::Component;
    let mut clean = PathBuf::new();
    for component in directory.join(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}
