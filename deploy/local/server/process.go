package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// defaultReady bounds the wait for a server's first answer.
	defaultReady = 60 * time.Second
	// defaultStop bounds a graceful stop; past it the process is killed.
	defaultStop = 10 * time.Second
)

// ErrKilled reports a process that did not end when asked to, and was killed.
var ErrKilled = errors.New("was killed")

// ErrExited reports a server that ended before it was ready, or that is not
// running when it should be.
var ErrExited = errors.New("process has exited")

// Run says how a server is run, whichever server it is. The zero value is
// right for tests.
type Run struct {
	// Detach lets the server outlive this process, in a session of its own.
	// A server that an earlier detached start left running in the same
	// directory is taken over.
	Detach bool
	// LogPath and PIDPath override <dir>/<name>.log and <dir>/<name>.pid.
	LogPath, PIDPath string
	// Say receives progress lines worth a person's attention, such as a
	// download and how long it takes. Nil drops them.
	Say func(string)
	// Within bounds the wait for the first answer; zero means 60 s.
	Within time.Duration
}

func (r Run) say(format string, args ...any) {
	if r.Say != nil {
		r.Say(fmt.Sprintf(format, args...))
	}
}

// Spec describes one process well enough to start it again.
type Spec struct {
	Name string   // names the process in messages and files
	Path string   // the executable, absolute
	Args []string // without the executable's own name
	Env  []string // KEY=value, added to this process's environment without PENSTOCK_*
	Dir  string   // data, log and pid; made when absent
	// Stdin is what the process finds on its standard input, at most 64 KiB. If
	// there is any, the input never ends; otherwise it is empty.
	Stdin []byte
	Addr  string // host:port it serves, for Process.Addr
	URL   string // for Process.URL
	// SecureAddr is host:port of a second listener, with TLS or SASL, for
	// Process.SecureAddr.
	SecureAddr string

	// Ready is asked until it returns nil. It must be quick and honour ctx.
	Ready func(ctx context.Context) error
	// Gone, when set, reports whether nothing of an earlier run is left that would
	// keep the next one from starting, such as children of a killed process.
	Gone func() bool
	// Stop is the graceful signal, zero means SIGTERM. StopWithin bounds the
	// wait for it, zero means 10 s.
	Stop       syscall.Signal
	StopWithin time.Duration
	// Orphan is the signal that the process gets when its parent dies, zero
	// means SIGKILL. Unused when detached.
	Orphan syscall.Signal
	// As is the identity the process runs under; nil means this process's.
	As *identity

	Run
}

// A Process is one running server. Its methods are safe for concurrent use.
type Process struct {
	Name    string // as in Spec
	Addr    string // host:port
	URL     string // in the form that clients of this server take
	Dir     string // data, log and pid
	LogPath string // everything it wrote to stdout and stderr, all runs
	// SecureAddr is host:port of the listener that KafkaOptions.Secure asked for.
	SecureAddr string

	spec Spec

	mu  sync.Mutex // held while the process is being started or stopped
	now sync.Mutex // guards cur
	cur *incarnation
}

// An incarnation is one run of a process, from fork to exit.
type incarnation struct {
	id     ID
	exited chan struct{} // closed after err is set
	err    error         // how it ended; nil for exit status 0
}

// Start runs the process that spec describes and returns when it is ready.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	spec = spec.withDefaults()
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Name, err)
	}
	p := newProcess(spec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if spec.Detach {
		if rec, err := readRecord(spec.Dir); err == nil && rec.Alive() {
			p.set(adopt(rec.ID))
			if err := p.awaitReady(ctx); err != nil {
				return nil, err
			}
			return p, nil
		}
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

func (s Spec) withDefaults() Spec {
	if s.Stop == 0 {
		s.Stop = syscall.SIGTERM
	}
	if s.StopWithin == 0 {
		s.StopWithin = defaultStop
	}
	if s.Orphan == 0 {
		s.Orphan = syscall.SIGKILL
	}
	if s.Within == 0 {
		s.Within = defaultReady
	}
	if s.LogPath == "" {
		s.LogPath = filepath.Join(s.Dir, s.Name+".log")
	}
	if s.PIDPath == "" {
		s.PIDPath = filepath.Join(s.Dir, s.Name+".pid")
	}
	return s
}

func newProcess(spec Spec) *Process {
	return &Process{
		Name: spec.Name, Addr: spec.Addr, URL: spec.URL, Dir: spec.Dir, LogPath: spec.LogPath,
		SecureAddr: spec.SecureAddr, spec: spec,
	}
}

// start launches and waits for readiness. It kills what does not become ready.
func (p *Process) start(ctx context.Context) error {
	err := p.awaitGone(ctx)
	if err != nil {
		return err
	}
	cur, err := p.launch(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	p.set(cur)
	if err := p.record(cur.id); err != nil {
		return errors.Join(err, p.Kill())
	}
	if err := p.awaitReady(ctx); err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

// launch forks. The kernel sends the parent-death signal when the *thread* that
// forked ends, so that thread is kept until the child has exited.
func (p *Process) launch(ctx context.Context) (*incarnation, error) {
	log, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own copy

	// The process must outlive the call that starts it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.spec.Path, p.spec.Args...)
	cmd.Dir = "/"
	if p.spec.As == nil {
		cmd.Dir = p.Dir
	}
	cmd.Env = append(ownEnvironment(), p.spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = p.spec.attributes()
	closeInput, err := p.spec.input(cmd)
	if err != nil {
		return nil, err
	}
	defer closeInput()

	cur := &incarnation{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := p.spec.As.prepareThread()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err != nil {
			return
		}
		cur.err = cmd.Wait()
		close(cur.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	cur.id, err = Identify(cmd.Process.Pid)
	if err != nil {
		// It has ended already; awaitReady will say so.
		cur.id = ID{PID: cmd.Process.Pid}
	}
	return cur, nil
}

// input gives a process its standard input. The process inherits the writing end
// too, so that nobody's exit ends it. What is returned closes this process's ends.
func (s Spec) input(cmd *exec.Cmd) (closeEnds func(), err error) {
	if s.Stdin == nil {
		return func() {}, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	closeEnds = func() { _ = errors.Join(r.Close(), w.Close()) }
	if _, err := w.Write(s.Stdin); err != nil { // it fits into the pipe
		closeEnds()
		return nil, err
	}
	cmd.Stdin, cmd.ExtraFiles = r, []*os.File{w}
	return closeEnds, nil
}

// ownEnvironment is this process's, without the knobs of services: what a shell
// happens to export must not reach a process that was configured otherwise.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PENSTOCK_") })
}

func (s Spec) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if s.Detach {
		attr.Setsid = true
	} else {
		// A group of its own: Ctrl-C on the terminal reaches this process
		// alone, which then stops its servers in order.
		attr.Setpgid = true
		attr.Pdeathsig = s.Orphan
	}
	if s.As != nil {
		attr.Credential = &syscall.Credential{Uid: s.As.uid, Gid: s.As.gid}
		attr.AmbientCaps = s.As.ambient
	}
	return attr
}

// Another starts the same program once more, beside the process: with a directory
// of its own, env put over the environment that the process has, and ready when
// ready says so. It serves no address that the process serves.
func (p *Process) Another(ctx context.Context, dir string, env []string, ready func(context.Context) error) (*Process, error) {
	s := p.spec
	s.Dir, s.LogPath, s.PIDPath = dir, "", ""
	s.Env, s.Ready = append(slices.Clone(s.Env), env...), ready
	s.Addr, s.URL, s.SecureAddr = "", "", ""
	return Start(ctx, s)
}

func (p *Process) set(cur *incarnation) {
	p.now.Lock()
	defer p.now.Unlock()
	p.cur = cur
}

func (p *Process) current() *incarnation {
	p.now.Lock()
	defer p.now.Unlock()
	return p.cur
}

// PID is the process id of the current run, also after it has ended.
func (p *Process) PID() int { return p.current().id.PID }

// Exited is closed when the current run has ended. Restart begins another run,
// with another channel.
func (p *Process) Exited() <-chan struct{} { return p.current().exited }

// Running reports whether the current run has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// Wait blocks until the current run ends and returns how it ended, or until
// ctx ends.
func (p *Process) Wait(ctx context.Context) error {
	cur := p.current()
	select {
	case <-cur.exited:
		return cur.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop asks the process to end and waits. When it has not ended within its
// bound, or when ctx ends first, it is killed and Stop returns an error. To
// stop what has ended already is no error.
func (p *Process) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stop(ctx)
}

func (p *Process) stop(ctx context.Context) error {
	if !p.Running() {
		return p.forget()
	}
	if err := p.Signal(p.spec.Stop); err != nil {
		return err
	}
	_ = p.Signal(syscall.SIGCONT) // a frozen process acts on no other signal; one that just ended needs none
	within, cancel := context.WithTimeout(ctx, p.spec.StopWithin)
	defer cancel()
	begun := time.Now()
	select {
	case <-p.Exited():
		return p.forget()
	case <-within.Done():
		err := fmt.Errorf("%s (pid %d) had not stopped after %v and %w",
			p.Name, p.PID(), time.Since(begun).Round(time.Millisecond), ErrKilled)
		return errors.Join(err, p.Kill())
	}
}

// Kill ends the process at once with SIGKILL and returns when it is gone.
func (p *Process) Kill() error {
	if p.Running() {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
		<-p.Exited()
	}
	return p.forget()
}

// Restart stops the process if it runs and starts it again: same directory,
// same port, same arguments. It returns when the server is ready.
func (p *Process) Restart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.stop(ctx); err != nil {
		return err
	}
	return p.start(ctx)
}

// Freeze stops the process from running, without its noticing, until Thaw:
// connections stay open and are not answered. It returns when every thread has
// stopped.
func (p *Process) Freeze() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(defaultStop); !stopped(p.PID()); {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: pid %d goes on after SIGSTOP", p.Name, p.PID())
		}
		runtime.Gosched()
	}
	return nil
}

// Thaw ends a Freeze.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Signal sends sig to the process. A process that has ended gets none.
func (p *Process) Signal(sig syscall.Signal) error {
	cur := p.current()
	select {
	case <-cur.exited:
		return nil
	default:
	}
	if err := syscall.Kill(cur.id.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s: signal %v to pid %d: %w", p.Name, sig, cur.id.PID, err)
	}
	return nil
}

// record leaves the pid for people, and for a later Start or Find what it
// needs to recognise the process.
func (p *Process) record(id ID) error {
	if err := os.WriteFile(p.spec.PIDPath, []byte(strconv.Itoa(id.PID)+"\n"), 0o644); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return writeRecord(p.Dir, record{
		ID: id, Name: p.Name, Addr: p.Addr, URL: p.URL, SecureAddr: p.SecureAddr, Log: p.LogPath, PIDFile: p.spec.PIDPath,
		Stop: p.spec.Stop, StopWithin: p.spec.StopWithin,
	})
}

// forget removes what record left. A directory that is gone has nothing left.
func (p *Process) forget() error {
	for _, path := range []string{p.spec.PIDPath, recordPath(p.Dir)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}
