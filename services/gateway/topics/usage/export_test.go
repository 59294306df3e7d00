package usage

import "time"

// Forget empties the memory, as if Kafka had taken everything.
func (u *Usage) Forget() {
	u.encode(time.Now())
	for _, p := range *u.all.Load() {
		p.close()
		for c := p.pop(); c != nil; c = p.pop() {
			u.free.put(c)
		}
	}
}
