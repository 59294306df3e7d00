package counters

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// DefaultBudget is how long a decision waits for the store.
const DefaultBudget = 50 * time.Millisecond

// Bounds of a budget.
const (
	MinBudget = time.Millisecond
	MaxBudget = 10 * time.Second
)

// A Config says where Redis is and how long a caller waits for it.
type Config struct {
	// URL is redis://[user:password@]host[:6379][/db], rediss:// for TLS, or
	// unix://path[?db=n]; of a Cluster redis:// or rediss:// with any of its
	// nodes, and further ones as ?addr=host:port&addr=host:port. It may hold a
	// password: do not print it.
	URL string

	// Cluster says that URL names nodes of a Redis Cluster.
	Cluster bool

	// Budget bounds a decision, from the call to its answer, dialling and
	// waiting for a connection included: MinBudget to MaxBudget.
	Budget time.Duration

	// Adopt has a store that was emptied, replaced or restarted go on with what
	// it holds. Without it no quota or wallet is decided there until somebody
	// has restored them and set the epoch.
	Adopt bool

	// TLS, for rediss://, replaces the default of TLS 1.2 and the system's
	// authorities.
	TLS *tls.Config
}

// ErrConfig reports a configuration that cannot work.
var ErrConfig = errors.New("counter store configuration")

// Validate returns an error that wraps ErrConfig, or nil. The text does not
// show the password.
func (c Config) Validate() error {
	_, _, err := c.options()
	return err
}

// options are go-redis's for one node, and a cluster's addresses: nothing waits
// longer than the budget, nothing is sent that we did not ask for, and nothing
// is sent twice.
func (c Config) options() (o *redis.Options, seeds []string, err error) {
	if c.Budget < MinBudget || c.Budget > MaxBudget {
		return nil, nil, fmt.Errorf("%w: budget is %v, want %v to %v", ErrConfig, c.Budget, MinBudget, MaxBudget)
	}
	if c.Cluster {
		o, seeds, err = clusterOptions(c.URL)
	} else if o, err = redis.ParseURL(c.URL); err != nil { // which may show the password
		err = fmt.Errorf("%w: url is not redis://[user:password@]host[:port][/db], rediss:// or unix://", ErrConfig)
	}
	if err != nil {
		return nil, nil, err
	}
	if o.TLSConfig != nil && c.TLS != nil {
		o.TLSConfig = c.TLS
	}
	o.Protocol = 2 // no pushes between replies
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = c.Budget, c.Budget, c.Budget, c.Budget
	o.MinIdleConns = 2
	o.ConnMaxIdleTime = 5 * time.Minute
	o.PipelinePoolSize = -1
	return o, seeds, nil
}

// clusterOptions are those that a cluster's URL may set for its nodes.
func clusterOptions(url string) (*redis.Options, []string, error) {
	c, err := redis.ParseClusterURL(url)
	if err != nil { // which may show the password
		return nil, nil, fmt.Errorf("%w: url is not redis://[user:password@]host[:port][?addr=host:port&addr=…] or rediss://", ErrConfig)
	}
	return &redis.Options{
		Username: c.Username, Password: c.Password, TLSConfig: c.TLSConfig, ClientName: c.ClientName,
		PoolSize: max(c.PoolSize, maxNodeCalls+8), MaxActiveConns: c.MaxActiveConns,
	}, c.Addrs, nil
}
