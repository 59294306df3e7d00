package topics

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var monday = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

// TestStreams guarantees what counts as a repeat and what as a gap.
func TestStreams(t *testing.T) {
	t.Parallel()

	a, b := [16]byte{1}, [16]byte{2}
	tests := []struct {
		name    string
		see     func(s *streams) (repeats int)
		repeats int
		open    int64 // missing at the end
		lost    int64 // of them after the wait
	}{
		{"in order", numbers(a, 1, 2, 3, 4), 0, 0, 0},
		{"taken over in the middle", numbers(a, 500, 501, 502), 0, 0, 0},
		{"all of it twice", numbers(a, 1, 2, 3, 1, 2, 3), 3, 0, 0},
		{"a batch that is handled again", numbers(a, 7, 8, 9, 8, 9, 10), 2, 0, 0},
		{"one is missing", numbers(a, 1, 2, 4), 0, 1, 1},
		{"many are missing", numbers(a, 1, 1000), 0, 998, 998},
		{"late, and then there", numbers(a, 1, 2, 5, 3, 4), 0, 0, 0},
		{"late in the middle of a hole", numbers(a, 1, 7, 4), 0, 4, 4},
		{"the hole filled from both ends", numbers(a, 1, 6, 2, 5, 3, 4), 0, 0, 0},
		{"what filled a hole comes again", numbers(a, 1, 3, 2, 2), 1, 0, 0},
		{"two streams, each in order", func(s *streams) int { return numbers(a, 1, 2)(s) + numbers(b, 9, 10)(s) + numbers(a, 3)(s) }, 0, 0, 0},
		{"two streams, each with a gap", func(s *streams) int { return numbers(a, 1, 3)(s) + numbers(b, 1, 4)(s) }, 0, 3, 3},
		{"more holes than are remembered", numbers(a, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21), 0, maxHoles, maxHoles},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			s := newStreams()
			if got := tt.see(s); got != tt.repeats {
				t.Errorf("%d repeats, want %d", got, tt.repeats)
			}
			if got := s.missingNow(); got != tt.open {
				t.Errorf("%d missing, want %d", got, tt.open)
			}
			if got := s.settle(monday.Add(settle - 1)); got != 0 {
				t.Errorf("%d given up before their time", got)
			}
			if got := s.settle(monday.Add(settle)); got != tt.lost || s.missingNow() != 0 {
				t.Errorf("%d given up and %d still missing, want %d and none", got, s.missingNow(), tt.lost)
			}
		})
	}
}

// numbers sees numbers of a stream, on Monday.
func numbers(id [16]byte, all ...int64) func(s *streams) int {
	return func(s *streams) (repeats int) {
		for _, n := range all {
			if again, _ := s.see(0, id, n, monday); again {
				repeats++
			}
		}
		return repeats
	}
}

// TestStreamsCountEveryNumberOnce guarantees, for any order of any numbers, that
// each is a repeat or new, and that what is new, missing and given up makes up
// everything between the first and the highest.
func TestStreamsCountEveryNumberOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newStreams()
		seen := map[int64]bool{}
		var first, highest, lost, fresh int64
		for i, n := range rapid.SliceOfN(rapid.Int64Range(1, 60), 1, 80).Draw(t, "numbers") {
			again, given := s.see(0, [16]byte{}, n, monday)
			lost += given
			if i == 0 {
				first, highest = n, n
			}
			if n < first {
				if !again {
					t.Fatalf("%d is before the first and new", n)
				}
				continue
			}
			if again && !seen[n] && given == 0 && lost == 0 {
				t.Fatalf("%d is called a repeat and is none", n)
			}
			if !again && seen[n] {
				t.Fatalf("%d is a repeat and called new", n)
			}
			if !again {
				fresh++
			}
			seen[n] = true
			highest = max(highest, n)
			if fresh+s.missingNow()+lost != highest-first+1 {
				t.Fatalf("%d new, %d missing, %d given up, of %d to %d", fresh, s.missingNow(), lost, first, highest)
			}
			for st := range s.open {
				if len(st.holes) == 0 || len(st.holes) > maxHoles {
					t.Fatalf("%d holes are remembered", len(st.holes))
				}
			}
		}
	})
}

// TestStreamsAreForgotten guarantees that memory is bounded: by the partitions
// that are read, by a day of silence, and by number.
func TestStreamsAreForgotten(t *testing.T) {
	t.Parallel()

	s := newStreams()
	numbers([16]byte{1}, 1, 5)(s)
	if lost := s.revoke(0); lost != 3 || len(s.partitions) != 0 || s.missingNow() != 0 || len(s.open) != 0 {
		t.Errorf("a partition that is gone leaves %d missing, %d partitions", s.missingNow(), len(s.partitions))
	}
	if again, _ := s.see(0, [16]byte{1}, 3, monday); again {
		t.Error("a partition that comes back remembers")
	}

	s.settle(monday.Add(idle - 1))
	if len(s.partitions[0]) != 1 {
		t.Error("a stream was forgotten before its time")
	}
	s.settle(monday.Add(idle))
	if len(s.partitions[0]) != 0 {
		t.Error("a silent stream is remembered")
	}

	for i := range maxStreams + 10 {
		s.see(1, [16]byte{byte(i >> 8), byte(i)}, 1, monday.Add(time.Duration(i)))
	}
	if n := len(s.partitions[1]); n != maxStreams {
		t.Errorf("%d streams are remembered, want %d", n, maxStreams)
	}
	if again, _ := s.see(1, [16]byte{}, 1, monday); again {
		t.Error("the stream that was silent longest is remembered")
	}
}
