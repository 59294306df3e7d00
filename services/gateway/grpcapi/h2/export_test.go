package h2

// Seams of the tests: what is inside and worth a table or a fuzz target of its
// own.
var (
	ParseTimeout  = parseTimeout
	AppendPercent = appendPercent
	AppendInt     = appendInt
	IsGRPC        = isGRPC
)

// Frames cuts b into frames, and returns the bytes that are left and the
// payloads' lengths.
func Frames(b []byte) (rest []byte, lengths []int, err error) {
	var f frame
	for {
		n, err := next(b, &f)
		if n == 0 || err != nil {
			return b, lengths, err
		}
		if f.typ == frameData || f.typ == frameHeaders {
			if err := f.unpad(); err != nil {
				return b, lengths, err
			}
		}
		lengths = append(lengths, len(f.payload))
		b = b[n:]
	}
}

// A Decoder is a connection's decoder of header blocks.
type Decoder struct{ d *decoder }

// NewDecoder returns one with that bound.
func NewDecoder(limit int) Decoder { return Decoder{newDecoder(limit)} }

// Decode returns a block's metadata, its path, and whether it may begin a
// request.
func (d Decoder) Decode(block []byte) (fields []Field, path string, good bool, err error) {
	r, err := d.d.decode(block)
	if err != nil {
		return nil, "", false, err
	}
	return r.fields, r.path, r.wellFormed() && !d.d.tooLarge(), nil
}
