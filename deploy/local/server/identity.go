package server

import (
	"fmt"
	"path/filepath"
	"syscall"
)

// identity is another user's, with the capabilities it needs besides.
type identity struct {
	uid, gid uint32
	ambient  []uintptr
}

// passThrough gives the identity the one capability that lets it into
// directories behind one that it may not enter, such as root's home, if that is
// where any of dirs lies.
func (as *identity) passThrough(dirs ...string) {
	const dacOverride = 1 // CAP_DAC_OVERRIDE, which containers keep; the milder CAP_DAC_READ_SEARCH they do not
	for _, dir := range dirs {
		if !as.reaches(dir) {
			as.ambient = []uintptr{dacOverride}
		}
	}
}

// prepareThread makes the thread that will fork let the child's capabilities
// count in access(2) too, by which Java asks whether a file exists. Without this
// securebit the kernel leaves them out of that one call for whoever is not root.
// The thread must not be used for anything else afterwards.
func (as *identity) prepareThread() error {
	if as == nil || len(as.ambient) == 0 {
		return nil
	}
	const getSecurebits, setSecurebits, noSetuidFixup = 27, 28, 1 << 2
	bits, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, getSecurebits, 0, 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(syscall.SYS_PRCTL, setSecurebits, bits|noSetuidFixup, 0)
	}
	if errno != 0 {
		return fmt.Errorf("prctl: %w", errno)
	}
	return nil
}

// reaches reports whether the identity may pass through every directory down
// to dir.
func (as *identity) reaches(dir string) bool {
	for {
		var st syscall.Stat_t
		if syscall.Stat(dir, &st) != nil {
			return false
		}
		bit := uint32(0o001)
		if st.Uid == as.uid {
			bit = 0o100
		} else if st.Gid == as.gid {
			bit = 0o010
		}
		if st.Mode&bit == 0 {
			return false
		}
		if dir == "/" {
			return true
		}
		dir = filepath.Dir(dir)
	}
}
