// Package money is whole minor units of a currency, prices as exact decimals, and
// the one rounding rule.
//
// A price is a decimal string of major units (0.00001), kept as it was written. What
// is charged is a product of a price and whole units, exact to the last digit. Only
// a total is rounded, half up, once: Split gives each line its floor, and the spare
// minor units to the lines with the largest remainders, ties to the first line. There
// is no floating-point number anywhere.
package money

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// ErrMoney reports what is no money: a bad currency, price or sum.
var ErrMoney = errors.New("invalid money")

// A Currency is an ISO 4217 code, e.g. USD.
type Currency string

// exponents are the currencies whose minor unit is not a hundredth, by ISO 4217.
var exponents = map[Currency]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0,
	"RWF": 0, "UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
}

// Exponent is how many digits the minor unit is behind the point: 2 of USD, 0 of JPY.
// A code that is not known has 2.
func (c Currency) Exponent() int {
	if e, ok := exponents[c]; ok {
		return e
	}
	return 2
}

// Validate returns an error that wraps ErrMoney unless c looks like a code.
func (c Currency) Validate() error {
	if len(c) != 3 || strings.Trim(string(c), "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return fmt.Errorf("%w: currency %.16q is not three letters A-Z", ErrMoney, string(c))
	}
	return nil
}

// An Amount is whole minor units of a currency.
type Amount struct {
	Minor    int64
	Currency Currency
}

// Decimal is the amount in major units, with as many digits as the currency has:
// 1234 of USD is 12.34.
func (a Amount) Decimal() string {
	e := a.Currency.Exponent()
	digits := new(big.Int).Abs(big.NewInt(a.Minor)).String()
	if len(digits) <= e {
		digits = strings.Repeat("0", e+1-len(digits)) + digits
	}
	sign := ""
	if a.Minor < 0 {
		sign = "-"
	}
	if e == 0 {
		return sign + digits
	}
	return sign + digits[:len(digits)-e] + "." + digits[len(digits)-e:]
}

// String is the amount as people read it, e.g. USD 12.34.
func (a Amount) String() string {
	if a.Currency == "" {
		return a.Decimal()
	}
	return string(a.Currency) + " " + a.Decimal()
}

// MaxDigits is the most digits a price has on each side of its point.
const MaxDigits = 12

// A Price is what one unit costs, in major units of some currency. The zero Price is 0.
type Price struct {
	text string
}

// ParsePrice reads a decimal as plans have it: digits, and perhaps a point and digits,
// at most MaxDigits on each side. There is no sign: a negative price mints credit. The
// error wraps ErrMoney.
func ParsePrice(s string) (Price, error) {
	whole, fraction, point := strings.Cut(s, ".")
	if !digits(whole) || point && !digits(fraction) {
		return Price{}, fmt.Errorf("%w: price %.64q is not a decimal of at most %d digits on each side of the point", ErrMoney, s, MaxDigits)
	}
	return Price{text: s}, nil
}

func digits(s string) bool {
	return s != "" && len(s) <= MaxDigits && strings.Trim(s, "0123456789") == ""
}

// String is the price as it was written.
func (p Price) String() string {
	if p.text == "" {
		return "0"
	}
	return p.text
}

// rat is the price exactly.
func (p Price) rat() *big.Rat {
	r, ok := new(big.Rat).SetString(p.String())
	if !ok {
		return new(big.Rat)
	}
	return r
}

// A Sum is an exact sum of minor units, before rounding. The zero Sum is 0.
type Sum struct {
	minor *big.Rat
}

// Times is units × price in minor units of the currency. Units may be negative: they
// are given back.
func Times(units int64, p Price, c Currency) Sum {
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(c.Exponent())), nil)
	r := new(big.Rat).SetInt64(units)
	return Sum{r.Mul(r, p.rat()).Mul(r, new(big.Rat).SetInt(scale))}
}

// Whole is a sum of whole minor units.
func Whole(minor int64) Sum { return Sum{new(big.Rat).SetInt64(minor)} }

// Plus is s + t.
func (s Sum) Plus(t Sum) Sum { return Sum{new(big.Rat).Add(s.rat(), t.rat())} }

// Minus is s − t.
func (s Sum) Minus(t Sum) Sum { return Sum{new(big.Rat).Sub(s.rat(), t.rat())} }

// Sign is -1, 0 or 1.
func (s Sum) Sign() int { return s.rat().Sign() }

// String is the sum as a fraction, for people who compare.
func (s Sum) String() string { return s.rat().RatString() }

func (s Sum) rat() *big.Rat {
	if s.minor == nil {
		return new(big.Rat)
	}
	return s.minor
}

// Round is the sum in whole minor units, half up: towards the greater. The error wraps
// ErrMoney: more than an Amount can hold.
func (s Sum) Round() (int64, error) {
	r := new(big.Rat).Add(s.rat(), big.NewRat(1, 2))
	n := new(big.Int).Div(r.Num(), r.Denom()) // the floor: Denom is positive
	if !n.IsInt64() {
		return 0, fmt.Errorf("%w: %s minor units do not fit", ErrMoney, n)
	}
	return n.Int64(), nil
}

// Split rounds the total of sums and divides it among them: each gets its floor, and
// the spare units go one each to the largest remainders, ties to the first. The
// parts add up to the total, and each is within one unit of its sum. The error wraps
// ErrMoney.
func Split(sums []Sum) (total int64, parts []int64, err error) {
	all := Sum{}
	floors, remainders := make([]int64, len(sums)), make([]*big.Rat, len(sums))
	given := new(big.Int)
	for i, s := range sums {
		all = all.Plus(s)
		floor := new(big.Int).Div(s.rat().Num(), s.rat().Denom())
		if !floor.IsInt64() {
			return 0, nil, fmt.Errorf("%w: %s minor units do not fit", ErrMoney, floor)
		}
		floors[i] = floor.Int64()
		given.Add(given, floor)
		remainders[i] = new(big.Rat).Sub(s.rat(), new(big.Rat).SetInt(floor))
	}
	if total, err = all.Round(); err != nil {
		return 0, nil, err
	}
	spare := new(big.Int).Sub(big.NewInt(total), given).Int64() // 0 to len(sums)
	for _, i := range largest(remainders)[:spare] {
		floors[i]++
	}
	return total, floors, nil
}
