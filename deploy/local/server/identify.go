package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An ID names one process for good. A pid alone does not: the kernel hands it
// out again, and a pid file may be older than the boot.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`  // the kernel's boot id
}

// Identify returns the identity of the process that has pid now.
func Identify(pid int) (ID, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	state, start, err := stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return ID{}, err
	}
	if state == 'Z' {
		return ID{}, fmt.Errorf("pid %d: %w", pid, ErrExited)
	}
	return ID{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether that very process still runs.
func (id ID) Alive() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// stat reads state and start time (fields 3 and 22) of the stat file of a
// process or thread. The command in field 2 may hold anything, closing
// parentheses included.
func stat(dir string) (state byte, start uint64, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("%s/stat: %d fields", dir, len(fields))
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return fields[0][0], start, err
}

// stopped reports whether no thread of a process runs: all are stopped by a
// signal, or there is no such process.
func stopped(pid int) bool {
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*")
	if err != nil {
		return false
	}
	for _, thread := range threads {
		if state, _, err := stat(thread); err == nil && state != 'T' && state != 'Z' {
			return false
		}
	}
	return true
}

// adopt watches a process that is no child of this one, by asking.
func adopt(id ID) *incarnation {
	cur := &incarnation{id: id, exited: make(chan struct{})}
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for id.Alive() {
			<-tick.C
		}
		close(cur.exited)
	}()
	return cur
}

// A record is what a started process leaves in its directory for those who
// come later.
type record struct {
	ID
	Name       string         `json:"name"`
	Addr       string         `json:"addr"`
	URL        string         `json:"url"`
	SecureAddr string         `json:"secure_addr,omitempty"`
	Log        string         `json:"log"`
	PIDFile    string         `json:"pid_file"`
	Stop       syscall.Signal `json:"stop_signal"`
	StopWithin time.Duration  `json:"stop_within_ns"`
}

func recordPath(dir string) string { return filepath.Join(dir, "process.json") }

func readRecord(dir string) (record, error) {
	var r record
	b, err := os.ReadFile(recordPath(dir))
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(b, &r)
	return r, err
}

// writeRecord replaces the record at once: a reader sees the old or the new.
func writeRecord(dir string, r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := recordPath(dir) + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, recordPath(dir))
}

// Runs returns the identity of the process that an earlier start left running
// in dir; ok is false when there is none.
func Runs(dir string) (id ID, ok bool, err error) {
	r, err := readRecord(dir)
	if errors.Is(err, os.ErrNotExist) {
		return ID{}, false, nil
	}
	if err != nil {
		return ID{}, false, fmt.Errorf("%s: %w", recordPath(dir), err)
	}
	return r.ID, r.Alive(), nil
}

// Find returns the process that an earlier start left running in dir, to stop,
// kill or watch; it cannot be restarted. Found is false when there is none; what
// a process that has ended left for others to recognise it is then removed.
func Find(dir string) (p *Process, found bool, err error) {
	id, alive, err := Runs(dir)
	if err != nil || id == (ID{}) {
		return nil, false, err
	}
	r, err := readRecord(dir)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", recordPath(dir), err)
	}
	p = newProcess(Spec{
		Name: r.Name, Dir: dir, Addr: r.Addr, URL: r.URL, SecureAddr: r.SecureAddr, Stop: r.Stop, StopWithin: r.StopWithin,
		Run: Run{LogPath: r.Log, PIDPath: r.PIDFile},
	})
	if !alive {
		return nil, false, p.forget()
	}
	p.set(adopt(id))
	return p, true, nil
}
