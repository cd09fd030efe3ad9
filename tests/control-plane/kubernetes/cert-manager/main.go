// Command cert-manager runs the real controllers of cert-manager and its cainjector in one process.
//
// Its own commands are Go modules apart that cannot be fetched, but what they put together is public
// packages. Here it is those that issue from SelfSigned and CA issuers. It takes no lease and listens
// nowhere. SIGTERM or SIGINT ends it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"

	// Each registers its controller.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"

	// Each registers a kind of issuer. Without them no issuer becomes ready.
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// As the real command sets it, like all the other values here: the library itself has no defaults.
const workersPerController = 5

func main() {
	options := controller.ContextOptions{
		// Only for an API server without priority and fairness: else the clients have no limit.
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes: []string{
				"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/",
			},
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	}
	verbosity := klog.Level(logs.InfoLevel)
	_ = verbosity.Set(verbosity.String()) // to be in force without the flag, too

	// Not the flag package's own set: to that one controller-runtime adds a -kubeconfig.
	flags := flag.NewFlagSet("cert-manager", flag.ExitOnError)
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "",
		"file that says where the API server is and who we are")
	flags.StringVar(&options.ClusterResourceNamespace, "cluster-resource-namespace", "cert-manager",
		"where the Secrets of ClusterIssuers are")
	flags.DurationVar(&options.CertificateRequestMinimumBackoffDuration,
		"certificate-request-minimum-backoff-duration", time.Hour,
		"how long to wait after a first failure to issue; doubled after each further one")
	flags.Var(&verbosity, "v", "how much to log: 0 little, 2 as the real command does, 5 all")
	_ = flags.Parse(os.Args[1:]) // on an error it exits
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "cert-manager: unknown argument %q\n", flags.Arg(0))
		os.Exit(2)
	}

	logs.InitLogs()
	defer logs.FlushLogs()
	ctrl.SetLogger(logs.Log)

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	// What fails because it was told to stop has not failed.
	if err := run(logs.NewContext(stop, logs.Log), options); err != nil && stop.Err() == nil {
		logs.Log.Error(err, "ended")
		logs.FlushLogs()
		os.Exit(1)
	}
}

// run returns when ctx is done, or else when one part has failed; all parts have stopped by then.
func run(ctx context.Context, options controller.ContextOptions) error {
	logs.Log.Info("starting", "version", util.AppVersion)
	group, ctx := errgroup.WithContext(ctx)

	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	controllers := map[string]controller.Interface{}
	for name, construct := range controller.Known() {
		if controllers[name], err = construct(factory); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	// Its informers are those of all controllers, its client is the cainjector's.
	shared, err := factory.Build("cainjector")
	if err != nil {
		return err
	}
	injector, err := newInjector(ctx, shared.RESTConfig)
	if err != nil {
		return fmt.Errorf("cainjector: %w", err)
	}

	// Not earlier: by now all controllers have said what they want to be informed of.
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	for name, constructed := range controllers {
		group.Go(func() error {
			if err := constructed.Run(workersPerController, ctx); err != nil {
				return fmt.Errorf("controller %s: %w", name, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		if err := injector.Start(ctx); err != nil {
			return fmt.Errorf("cainjector: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// newInjector makes what fills in caBundle wherever an annotation cert-manager.io/inject-… asks for it.
func newInjector(ctx context.Context, config *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubernetes.AddToScheme,
		certmanager.AddToScheme,
		apiextensions.AddToScheme,
		apiregistration.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}

	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metrics.Options{BindAddress: "0"}, // none: the default is a fixed port
		// It watches only the metadata of Secrets: a cache of whole ones would come on top.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return nil, err
	}

	// What is not named here is left out, without a word.
	return manager, cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
			cainjector.APIServiceName:                     true,
			cainjector.CustomResourceDefinitionName:       true,
		},
	})
}
