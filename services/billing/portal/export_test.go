package portal

// What the pages' words and forms are made of.
var (
	English, Turkish = english, turkish
	Words            = words

	Num     = lang.num
	Amount  = lang.money
	Percent = lang.percent
	Soon    = lang.soon
	Span    = lang.span
	Until   = lang.until
	Moment  = lang.moment
	Axis    = lang.axis
	Count   = lang.count
	Offset  = offset
	Policy  = policy
)

// Lang is a language.
type Lang = lang
