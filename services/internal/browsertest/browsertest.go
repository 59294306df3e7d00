// Package browsertest gives tests a real browser: Debian's Chromium without a
// screen, driven over a pipe in its own protocol.
//
// A page collects everything a person or a developer would see go wrong: dialogs,
// errors on the console, exceptions, violations of the content security policy. A
// machine without Chromium fails the test (as root, it is installed); nothing is
// skipped.
package browsertest

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock.dev/deploy/local/server"
)

// patience bounds every answer of the browser.
const patience = 30 * time.Second

// A Browser is one Chromium. Its pages share nothing.
type Browser struct {
	t    testing.TB
	to   *os.File
	done chan struct{} // closed when the browser's pipe ends

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan answer
	pages   map[string]*Page // by session
}

type message struct {
	ID      int64           `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

type answer struct {
	result json.RawMessage
	err    error
}

// Start returns a browser of the test's own, which ends with the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	path, err := server.FindChromium(t.Context(), server.Run{Say: func(text string) { t.Log(text) }})
	if err != nil {
		t.Fatalf("browsertest: %v", err)
	}
	theirIn, ourOut, err1 := os.Pipe()
	ourIn, theirOut, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatalf("browsertest: %v", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path,
		"--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("browsertest: %v", err)
	}
	_, _ = theirIn.Close(), theirOut.Close() // the browser has them
	b := &Browser{t: t, to: ourOut, done: make(chan struct{}), waiting: map[int64]chan answer{}, pages: map[string]*Page{}}
	go b.listen(ourIn)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with its children; gone already is as good
		_ = cmd.Wait()                                      // killed
		_, _ = ourOut.Close(), ourIn.Close()
		<-b.done
	})
	return b
}

// listen hands answers to who waits for them and events to their pages.
func (b *Browser) listen(from *os.File) {
	defer close(b.done)
	in := bufio.NewReader(from)
	for {
		raw, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		waits, page := b.waiting[m.ID], b.pages[m.Session]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && waits != nil:
			a := answer{result: m.Result}
			if m.Error != nil {
				a.err = errors.New(m.Error.Message)
			}
			waits <- a
		case page != nil:
			page.event(m)
		}
	}
}

// send asks the browser and does not wait.
func (b *Browser) send(session, method string, params any) (<-chan answer, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	c := make(chan answer, 1)
	b.waiting[b.last] = c
	out, err := json.Marshal(message{ID: b.last, Method: method, Params: raw, Session: session})
	if err != nil {
		return nil, err
	}
	_, err = b.to.Write(append(out, 0))
	return c, err
}

// call asks the browser and reads its answer into out, which may be nil.
func (b *Browser) call(session, method string, params, out any) error {
	c, err := b.send(session, method, params)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.t.Context()), patience)
	defer cancel()
	select {
	case a := <-c:
		if a.err != nil || out == nil {
			return a.err
		}
		return json.Unmarshal(a.result, out)
	case <-b.done:
		return fmt.Errorf("%s: the browser has ended", method)
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer: %w", method, ctx.Err())
	}
}

// A Look is how a page is looked at.
type Look struct {
	Width, Height int    // of the window, in CSS pixels
	Dark          bool   // the person prefers dark
	Language      string // the person's, e.g. tr-TR
	NoScript      bool   // scripts are off
}

// A Page is a window with cookies of its own.
type Page struct {
	b       *Browser
	t       testing.TB
	session string
	loaded  chan struct{}

	mu       sync.Mutex
	problems []string
	dialogs  int
}

type object = map[string]any

// Open returns a new window. It is closed with the browser.
func (b *Browser) Open(t testing.TB, l Look) *Page {
	t.Helper()
	p := &Page{b: b, t: t, loaded: make(chan struct{}, 16)}
	must := func(method string, params, out any) {
		t.Helper()
		if err := b.call(p.session, method, params, out); err != nil {
			t.Fatalf("browsertest: %s: %v", method, err)
		}
	}
	var made struct {
		BrowserContextID, TargetID, SessionID string
	}
	must("Target.createBrowserContext", object{}, &made)
	must("Target.createTarget", object{"url": "about:blank", "browserContextId": made.BrowserContextID}, &made)
	must("Target.attachToTarget", object{"targetId": made.TargetID, "flatten": true}, &made)
	p.session = made.SessionID
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	scheme := "light"
	if l.Dark {
		scheme = "dark"
	}
	var version struct{ UserAgent string }
	must("Browser.getVersion", object{}, &version)
	for _, c := range []struct {
		method string
		params any
	}{
		{"Page.enable", object{}},
		{"Runtime.enable", object{}},
		{"Log.enable", object{}},
		{"Network.enable", object{}},
		{"Emulation.setDeviceMetricsOverride", object{"width": l.Width, "height": l.Height, "deviceScaleFactor": 1, "mobile": l.Width < 600}},
		{"Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": scheme}}}},
		{"Emulation.setUserAgentOverride", object{"userAgent": version.UserAgent, "acceptLanguage": l.Language}},
		{"Emulation.setScriptExecutionDisabled", object{"value": l.NoScript}},
	} {
		must(c.method, c.params, nil)
	}
	return p
}

// event notes what went wrong on the page, and waves dialogs away.
func (p *Page) event(m message) {
	switch m.Method {
	case "Page.loadEventFired":
		select {
		case p.loaded <- struct{}{}:
		default: // nobody waits for that many
		}
	case "Page.javascriptDialogOpening":
		p.mu.Lock()
		p.dialogs++
		p.mu.Unlock()
		_, _ = p.b.send(p.session, "Page.handleJavaScriptDialog", object{"accept": false}) // its end shows in the next call
	case "Runtime.exceptionThrown":
		p.note("exception: %s", m.Params)
	case "Runtime.consoleAPICalled":
		var c struct{ Type string }
		if json.Unmarshal(m.Params, &c) == nil && (c.Type == "error" || c.Type == "warning" || c.Type == "assert") {
			p.note("console: %s", m.Params)
		}
	case "Log.entryAdded":
		var e struct {
			Entry struct{ Level, Text, URL string }
		}
		if json.Unmarshal(m.Params, &e) == nil && e.Entry.Level != "verbose" && e.Entry.Level != "info" {
			p.note("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	}
}

func (p *Page) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// Go leads the page to an address and returns when everything is loaded.
func (p *Page) Go(url string) {
	p.t.Helper()
	for len(p.loaded) > 0 {
		<-p.loaded
	}
	var out struct{ ErrorText string }
	if err := p.b.call(p.session, "Page.navigate", object{"url": url}, &out); err != nil || out.ErrorText != "" {
		p.t.Fatalf("browsertest: %s: %v %s", url, err, out.ErrorText)
	}
	p.Loaded()
}

// Loaded waits for the page that a click or a form led to.
func (p *Page) Loaded() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	select {
	case <-p.loaded:
	case <-p.b.done:
		p.t.Fatal("browsertest: the browser has ended")
	case <-ctx.Done():
		p.t.Fatalf("browsertest: the page does not load: %v", ctx.Err())
	}
}

// Eval runs a script's expression on the page and reads its value into out,
// which may be nil. A promise is waited for.
func (p *Page) Eval(script string, out any) {
	p.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	err := p.b.call(p.session, "Runtime.evaluate", object{"expression": script, "returnByValue": true, "awaitPromise": true}, &r)
	if err == nil && r.ExceptionDetails != nil {
		err = fmt.Errorf("%s", r.ExceptionDetails)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(r.Result.Value, out)
	}
	if err != nil {
		p.t.Fatalf("browsertest: %s: %v", script, err)
	}
}

// Shot keeps a picture of the whole page.
func (p *Page) Shot(path string) {
	p.t.Helper()
	var out struct{ Data string }
	err := p.b.call(p.session, "Page.captureScreenshot", object{"format": "png", "captureBeyondViewport": true}, &out)
	var png []byte
	if err == nil {
		png, err = base64.StdEncoding.DecodeString(out.Data)
	}
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, png, 0o644))
	}
	if err != nil {
		p.t.Fatalf("browsertest: %s: %v", path, err)
	}
}

// Problems are what went wrong since the page was opened: errors and warnings on
// the console, exceptions, what the content security policy refused.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.problems...)
}

// Dialogs is how many dialogs scripts have opened.
func (p *Page) Dialogs() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dialogs
}
