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
	// unix://path[?db=n]. It may hold a password: do not print it.
	URL string

	// Budget bounds a decision, from the call to its answer, dialling and
	// waiting for a connection included: MinBudget to MaxBudget.
	Budget time.Duration

	// TLS, for rediss://, replaces the default of TLS 1.2 and the system's
	// authorities.
	TLS *tls.Config
}

// ErrConfig reports a configuration that cannot work.
var ErrConfig = errors.New("counter store configuration")

// Validate returns an error that wraps ErrConfig, or nil. The text does not
// show the password.
func (c Config) Validate() error {
	_, err := c.options()
	return err
}

// options are go-redis's: nothing waits longer than the budget, nothing is
// sent that we did not ask for, and nothing is sent twice.
func (c Config) options() (*redis.Options, error) {
	if c.Budget < MinBudget || c.Budget > MaxBudget {
		return nil, fmt.Errorf("%w: budget is %v, want %v to %v", ErrConfig, c.Budget, MinBudget, MaxBudget)
	}
	o, err := redis.ParseURL(c.URL)
	if err != nil { // which may show the password
		return nil, fmt.Errorf("%w: url is not redis://[user:password@]host[:port][/db], rediss:// or unix://", ErrConfig)
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
	return o, nil
}
