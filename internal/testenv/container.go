package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	redisImage    = "weir/test-redis:7"
	postgresImage = "weir/test-postgres:15"

	// labelOwner marks our containers; its value is the host and process that owns one.
	labelOwner = "dev.weir.testenv.owner"
	labelHost  = "dev.weir.testenv.host"
	labelPID   = "dev.weir.testenv.pid"

	// startTimeout bounds the start of one container; 2 s is usual.
	startTimeout = 90 * time.Second
	// orphanAge is when a container is left over whoever started it: no test run lasts that long.
	orphanAge = 3 * time.Hour
)

// running holds what this process started, for Close.
var running struct {
	mu         sync.Mutex
	containers []testcontainers.Container
}

// prepare runs once per process, before the first container.
var prepare = sync.OnceValue(func() error {
	// Ryuk is an image from a registry; removing orphans at the start does its
	// work without. The override keeps addresses on loopback, where the nodes of
	// the cluster announce themselves.
	for name, value := range map[string]string{
		"TESTCONTAINERS_RYUK_DISABLED": "true",
		"TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
	} {
		if os.Getenv(name) == "" {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
	}
	log.SetDefault(silent{})
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return removeOrphans(ctx)
})

// silent drops the progress messages of testcontainers.
type silent struct{}

func (silent) Printf(string, ...any) {}

// start starts one container and registers it for Close. ready is the log line that says it serves.
func start(ctx context.Context, image, ready string, opts ...testcontainers.ContainerCustomizer) (*testcontainers.DockerContainer, error) {
	if err := prepare(); err != nil {
		return nil, err
	}
	if err := haveImage(ctx, image); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		testcontainers.WithLabels(map[string]string{
			labelOwner: "testenv",
			labelHost:  host,
			labelPID:   strconv.Itoa(os.Getpid()),
		}),
		testcontainers.WithWaitStrategyAndDeadline(startTimeout,
			wait.ForLog(ready).WithPollInterval(50*time.Millisecond)),
	)
	c, err := testcontainers.Run(ctx, image, opts...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", image, err), remove(c))
	}
	running.mu.Lock()
	defer running.mu.Unlock()
	running.containers = append(running.containers, c)
	return c, nil
}

// haveImage answers at once where a pull would only time out: our images are in no registry.
func haveImage(ctx context.Context, image string) error {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	defer func() { _ = docker.Close() }()
	if _, err := docker.ImageInspect(ctx, image); err != nil {
		return fmt.Errorf("image %s: %w (make images builds it)", image, err)
	}
	return nil
}

// Close removes every container and binary this process made. Main calls it; only a
// program that is no test has to. A backend asked for afterwards is not started again.
func Close() error {
	running.mu.Lock()
	defer running.mu.Unlock()
	errs := []error{removeBinaries()}
	for _, c := range running.containers {
		errs = append(errs, remove(c))
	}
	running.containers = nil
	return errors.Join(errs...)
}

// remove kills and removes a container; nothing in it is worth a graceful stop.
func remove(c testcontainers.Container) error {
	return testcontainers.TerminateContainer(c, testcontainers.StopTimeout(0))
}

// removeOrphans removes containers of ours whose process is gone.
func removeOrphans(ctx context.Context) error {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	defer func() { _ = docker.Close() }()
	list, err := docker.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", labelOwner+"=testenv"),
	})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		if !orphaned(c, host, time.Now()) {
			continue
		}
		// Another process may remove the same one at the same time; that is as good.
		_, _ = docker.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
	return nil
}

// orphaned says whether the process that owns c is gone. A process of another
// host cannot be seen from here, so only age speaks for it.
func orphaned(c container.Summary, host string, now time.Time) bool {
	if now.Sub(time.Unix(c.Created, 0)) > orphanAge {
		return true
	}
	pid, err := strconv.Atoi(c.Labels[labelPID])
	if err != nil || pid <= 0 {
		return true
	}
	return c.Labels[labelHost] == host && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// release removes one container before Close would.
func release(c testcontainers.Container) error {
	running.mu.Lock()
	running.containers = slices.DeleteFunc(running.containers, func(other testcontainers.Container) bool { return other == c })
	running.mu.Unlock()
	return remove(c)
}
