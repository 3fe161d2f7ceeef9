// A daprd with few components, for running and testing on one machine.
//
// The stock daprd registers every component there is and takes far longer to
// build. This one calls the same runtime packages with the same flags and
// registers only the brokers that this repository has component files for, and
// the state store with which the benchmark measures Dapr's own outbox.
// It is a development tool: production runs the sidecar its platform provides.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.opencensus.io/stats/view"

	"github.com/dapr/components-contrib/nameresolution"
	inmemory "github.com/dapr/components-contrib/pubsub/in-memory"
	"github.com/dapr/components-contrib/pubsub/jetstream"
	"github.com/dapr/components-contrib/pubsub/kafka"
	mqtt "github.com/dapr/components-contrib/pubsub/mqtt3"
	"github.com/dapr/components-contrib/pubsub/rabbitmq"
	"github.com/dapr/components-contrib/pubsub/redis"
	"github.com/dapr/components-contrib/secretstores/local/env"
	"github.com/dapr/components-contrib/secretstores/local/file"
	stateredis "github.com/dapr/components-contrib/state/redis"
	"github.com/dapr/dapr/cmd/daprd/options"
	"github.com/dapr/dapr/pkg/buildinfo"
	nameresolutionloader "github.com/dapr/dapr/pkg/components/nameresolution"
	pubsubloader "github.com/dapr/dapr/pkg/components/pubsub"
	secretstoresloader "github.com/dapr/dapr/pkg/components/secretstores"
	stateloader "github.com/dapr/dapr/pkg/components/state"
	"github.com/dapr/dapr/pkg/healthz"
	"github.com/dapr/dapr/pkg/metrics"
	"github.com/dapr/dapr/pkg/modes"
	"github.com/dapr/dapr/pkg/runtime"
	"github.com/dapr/dapr/pkg/runtime/registry"
	"github.com/dapr/dapr/pkg/security"
	"github.com/dapr/kit/concurrency"
	"github.com/dapr/kit/logger"
	"github.com/dapr/kit/signals"
)

var log = logger.NewLogger("dapr.runtime")

func main() {
	opts, err := options.New(os.Args[1:])
	if err != nil {
		log.Fatalf("bad flags: %v", err)
	}

	switch {
	case opts.RuntimeVersion:
		fmt.Println(buildinfo.Version())
		return
	case opts.BuildInfo:
		fmt.Printf("Version: %s\nGit Commit: %s\nGit Version: %s\n",
			buildinfo.Version(), buildinfo.Commit(), buildinfo.GitVersion())
		return
	case opts.WaitCommand:
		runtime.WaitUntilDaprOutboundReady(opts.DaprHTTPPort)
		return
	}

	opts.Logger.SetAppID(opts.AppID)
	if err := logger.ApplyOptionsToLoggers(&opts.Logger); err != nil {
		log.Fatal(err)
	}
	log.Infof("daprd %s (a minimal local build) starts, log level %s", buildinfo.Version(), opts.Logger.OutputLevel)

	registerComponents()

	// The runtime restarts in place on SIGHUP: it sends itself one when a
	// Resiliency or Configuration file changes. Each context ends with one.
	restarts := signals.OnHUP(signals.Context())
	for ctx := range restarts {
		if err := serve(ctx, opts); err != nil {
			log.Fatalf("the runtime failed: %s", err)
		}
		if ctx.Err() == nil {
			break // it ended by itself (the shutdown API), not for a restart
		}
	}
	log.Info("daprd ended")
}

// registerComponents uses the names of the stock daprd, so that a component
// file means the same to both.
func registerComponents() {
	contrib := logger.NewLogger("dapr.contrib")

	pubsubs := pubsubloader.DefaultRegistry
	pubsubs.Logger = contrib
	pubsubs.RegisterComponent(inmemory.New, "in-memory")
	pubsubs.RegisterComponent(redis.NewRedisStreams, "redis")
	pubsubs.RegisterComponent(rabbitmq.NewRabbitMQ, "rabbitmq")
	pubsubs.RegisterComponent(kafka.NewKafka, "kafka")
	pubsubs.RegisterComponent(jetstream.NewJetStream, "jetstream")
	pubsubs.RegisterComponent(mqtt.NewMQTTPubSub, "mqtt3", "mqtt")

	secrets := secretstoresloader.DefaultRegistry
	secrets.Logger = contrib
	secrets.RegisterComponent(env.NewEnvSecretStore, "local.env")
	secrets.RegisterComponent(file.NewLocalSecretStore, "local.file")

	states := stateloader.DefaultRegistry
	states.Logger = contrib
	states.RegisterComponent(stateredis.NewRedisStateStore, "redis")

	// mdns is the resolver the runtime asks for when nothing is configured; it
	// logs an error at every start if there is none.
	resolvers := nameresolutionloader.DefaultRegistry
	resolvers.Logger = contrib
	resolvers.RegisterComponent(func(logger.Logger) nameresolution.Resolver { return noResolver{} }, "mdns")
}

// noResolver finds nobody: service invocation is not part of this build.
type noResolver struct{}

func (noResolver) Init(context.Context, nameresolution.Metadata) error { return nil }

func (noResolver) ResolveID(context.Context, nameresolution.ResolveRequest) (string, error) {
	return "", errors.New("this local daprd has no service invocation")
}

func (noResolver) Close() error { return nil }

// serve runs one runtime until ctx ends.
func serve(ctx context.Context, opts *options.Options) error {
	health := healthz.New()
	provider, err := security.New(ctx, security.Options{
		AppID:                   opts.AppID,
		Mode:                    modes.DaprMode(opts.Mode),
		MTLSEnabled:             opts.EnableMTLS,
		SentryAddress:           opts.SentryAddress,
		TrustAnchors:            opts.TrustAnchors,
		ControlPlaneTrustDomain: opts.ControlPlaneTrustDomain,
		ControlPlaneNamespace:   opts.ControlPlaneNamespace,
		JwtAudiences:            opts.SentryRequestJwtAudiences,
		Healthz:                 health,
	})
	if err != nil {
		return err
	}

	run := func(ctx context.Context) error {
		handler, err := provider.Handler(ctx)
		if err != nil {
			return err
		}
		rt, err := runtime.FromConfig(ctx, config(opts, handler, health))
		if err != nil {
			return err
		}
		return rt.Run(ctx)
	}
	return concurrency.NewRunnerManager(provider.Run, run).Run(ctx)
}

// config hands every flag on: a flag left out here would be taken and ignored.
func config(opts *options.Options, handler security.Handler, health healthz.Healthz) *runtime.Config {
	return &runtime.Config{
		AppID:         opts.AppID,
		Mode:          opts.Mode,
		Config:        opts.Config,
		ResourcesPath: opts.ResourcesPath,
		Registry:      registry.NewOptions(), // the default registries, filled above
		Security:      handler,
		Healthz:       health,

		ApplicationPort:        opts.AppPort,
		AppProtocol:            opts.AppProtocol,
		AppChannelAddress:      opts.AppChannelAddress,
		AppSSL:                 opts.AppSSL,
		AppMaxConcurrency:      opts.AppMaxConcurrency,
		EnableAppHealthCheck:   opts.EnableAppHealthCheck,
		AppHealthCheckPath:     opts.AppHealthCheckPath,
		AppHealthProbeInterval: opts.AppHealthProbeInterval,
		AppHealthProbeTimeout:  opts.AppHealthProbeTimeout,
		AppHealthThreshold:     opts.AppHealthThreshold,
		DisableInitEndpoints:   opts.DisableInitEndpoints,

		DaprHTTPPort:                  opts.DaprHTTPPort,
		DaprAPIGRPCPort:               opts.DaprAPIGRPCPort,
		DaprAPIListenAddresses:        opts.DaprAPIListenAddresses,
		DaprInternalGRPCPort:          opts.DaprInternalGRPCPort,
		DaprInternalGRPCListenAddress: opts.DaprInternalGRPCListenAddress,
		DaprPublicPort:                opts.DaprPublicPort,
		DaprPublicListenAddress:       opts.DaprPublicListenAddress,
		UnixDomainSocket:              opts.UnixDomainSocket,
		AllowedOrigins:                opts.AllowedOrigins,
		MaxRequestSize:                opts.MaxRequestSize,
		ReadBufferSize:                opts.ReadBufferSize,
		EnableAPILogging:              opts.EnableAPILogging,
		EnableProfiling:               opts.EnableProfiling,
		ProfilePort:                   opts.ProfilePort,

		DaprGracefulShutdownSeconds: opts.DaprGracefulShutdownSeconds,
		DaprBlockShutdownDuration:   opts.DaprBlockShutdownDuration,
		HotReloadReconcileInterval:  opts.HotReloadReconcileInterval,
		ComponentsPath:              opts.ComponentsPath,

		EnableMTLS:                   opts.EnableMTLS,
		SentryAddress:                opts.SentryAddress,
		ControlPlaneAddress:          opts.ControlPlaneAddress,
		DisableBuiltinK8sSecretStore: opts.DisableBuiltinK8sSecretStore,
		ActorsService:                opts.ActorsService,
		ActorsDisseminationTimeout:   opts.ActorsDisseminationTimeout,
		RemindersService:             opts.RemindersService,
		SchedulerAddress:             opts.SchedulerAddress,
		SchedulerStreams:             opts.SchedulerJobStreams,

		Metrics: metrics.Options{
			Enabled:       opts.Metrics.Enabled(),
			Port:          opts.Metrics.Port(),
			ListenAddress: opts.Metrics.ListenAddress(),
			Namespace:     metrics.DefaultMetricNamespace,
			Log:           log,
			Healthz:       health,
			Meter:         view.NewMeter(),
		},
	}
}
