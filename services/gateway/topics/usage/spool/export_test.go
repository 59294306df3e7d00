package spool

import "os"

// FailWrites makes the next write to a partition's file fail after some of it
// has been written.
func (s *Spool) FailWrites(partition int32) {
	g := s.Queue(partition).last()
	broken, err := os.OpenFile(g.path, os.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	_, _ = g.file.WriteAt([]byte("half a rec"), g.size)
	_ = g.file.Close()
	g.file = broken
}
