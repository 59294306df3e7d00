package h2

import "encoding/binary"

// The settings of §6.5.2.
const (
	settingHeaderTableSize      = 0x1
	settingEnablePush           = 0x2
	settingMaxConcurrentStreams = 0x3
	settingInitialWindowSize    = 0x4
	settingMaxFrameSize         = 0x5
	settingMaxHeaderListSize    = 0x6
)

// greet sends our SETTINGS, and a connection's window that is larger than the
// one to begin with.
func (c *conn) greet() {
	start := len(c.out)
	b := begin(c.out, frameSettings, 0, 0)
	for _, s := range []struct {
		id    uint16
		value int
	}{
		{settingMaxConcurrentStreams, c.s.cfg.MaxStreams},
		{settingMaxHeaderListSize, c.s.cfg.MaxHeaders},
	} {
		b = binary.BigEndian.AppendUint16(b, s.id)
		b = binary.BigEndian.AppendUint32(b, uint32(s.value))
	}
	end(b, start)
	c.out = appendFrame(b, frameWindowUpdate, 0, connWindow-65535)
	c.unacked++
}

func (c *conn) onSettings(f *frame) error {
	switch {
	case f.stream != 0:
		return fault(ProtocolError, "SETTINGS on a stream")
	case f.has(flagAck) && len(f.payload) != 0, len(f.payload)%6 != 0:
		return fault(FrameSizeError, "SETTINGS of a wrong length")
	case f.has(flagAck):
		if c.unacked--; c.unacked < 0 {
			return fault(ProtocolError, "an answer to SETTINGS that were not sent")
		}
		return nil
	}
	initial := c.initial
	for p := f.payload; len(p) > 0; p = p[6:] {
		id, value := binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])
		switch id {
		case settingHeaderTableSize:
			c.table.resize(value)
		case settingEnablePush:
			if value > 1 {
				return fault(ProtocolError, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
			}
		case settingInitialWindowSize:
			if value > maxWindow {
				return fault(FlowControlError, "SETTINGS_INITIAL_WINDOW_SIZE is too large")
			}
			initial = int64(value)
		case settingMaxFrameSize:
			if value < frameLimit || value > 1<<24-1 {
				return fault(ProtocolError, "SETTINGS_MAX_FRAME_SIZE is out of bounds")
			}
		}
	}
	if err := c.resize(initial); err != nil {
		return err
	}
	c.settled = true
	c.out = begin(c.out, frameSettings, flagAck, 0)
	return c.spend(1 + len(f.payload)/48)
}

// resize changes the window that all streams began with. What a stream may
// send is the sum of that and its credit, which may become negative (§6.9.2):
// no stream need be touched, however often a peer changes its mind.
func (c *conn) resize(initial int64) error {
	c.initial = initial
	if initial+c.maxCredit <= maxWindow {
		return nil
	}
	c.maxCredit = 0
	for _, call := range c.streams {
		c.maxCredit = max(c.maxCredit, call.credit)
	}
	if initial+c.maxCredit > maxWindow {
		return fault(FlowControlError, "a stream's window is too large")
	}
	return nil
}
