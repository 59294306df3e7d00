package money_test

import (
	"errors"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"penstock.dev/services/internal/money"
)

func price(t testing.TB, s string) money.Price {
	t.Helper()
	p, err := money.ParsePrice(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestI1 guarantees the values of case I1: units × price, rounded once, half up, to
// the currency's own minor unit.
func TestI1(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		units    int64
		price    string
		currency money.Currency
		minor    int64
		shown    string
	}{
		{1_234_567, "0.00001", "USD", 1235, "USD 12.35"},
		{3, "0.335", "USD", 101, "USD 1.01"},
		{150, "0.35", "JPY", 53, "JPY 53"},
		{1, "0.0005", "KWD", 1, "KWD 0.001"},
		{0, "1", "USD", 0, "USD 0.00"},
		{-3, "0.335", "USD", -100, "USD -1.00"}, // −100.5: half up is towards the greater
		{1<<53 - 1, "1", "JPY", 1<<53 - 1, "JPY 9007199254740991"},
	} {
		got, err := money.Times(tt.units, price(t, tt.price), tt.currency).Round()
		if err != nil || got != tt.minor {
			t.Errorf("%d × %s %s is %d %v, want %d", tt.units, tt.price, tt.currency, got, err, tt.minor)
		}
		if shown := (money.Amount{Minor: got, Currency: tt.currency}).String(); shown != tt.shown {
			t.Errorf("%d of %s is shown as %s, want %s", got, tt.currency, shown, tt.shown)
		}
	}
}

// TestFC27a guarantees that the lines of an invoice add up: three lines of 0.333
// dollars are 1.00 together, and the spare cent goes to the first.
func TestFC27a(t *testing.T) {
	t.Parallel()

	p := price(t, "0.00333")
	line := money.Times(100, p, "USD")
	for range 10 {
		total, parts, err := money.Split([]money.Sum{line, line, line})
		if err != nil || total != 100 || len(parts) != 3 || parts[0] != 34 || parts[1] != 33 || parts[2] != 33 {
			t.Fatalf("split into %v of %d %v, want 34 33 33 of 100", parts, total, err)
		}
	}
}

// TestLargestRemainderFirst guarantees who gets the spare units, and that a line that
// is whole never does.
func TestLargestRemainderFirst(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		prices []string // of one unit of JPY
		want   []int64
		total  int64
	}{
		{[]string{"0.2", "0.9", "0.4"}, []int64{0, 1, 1}, 2},
		{[]string{"1", "0.5"}, []int64{1, 1}, 2},
		{[]string{"0.4", "7"}, []int64{0, 7}, 7},
		{nil, nil, 0},
	} {
		var sums []money.Sum
		for _, p := range tt.prices {
			sums = append(sums, money.Times(1, price(t, p), "JPY"))
		}
		total, parts, err := money.Split(sums)
		if err != nil || total != tt.total {
			t.Errorf("%v add up to %d %v, want %d", tt.prices, total, err, tt.total)
		}
		for i, want := range tt.want {
			if parts[i] != want {
				t.Errorf("%v are split into %v, want %v", tt.prices, parts, tt.want)
			}
		}
	}
}

// TestSplitAddsUp guarantees for any lines, credits among them: parts add up to the
// total, the total is the sum rounded half up, no part is a whole unit from its sum,
// and the same lines always give the same parts.
func TestSplitAddsUp(t *testing.T) {
	t.Parallel()

	spares := 0
	rapid.Check(t, func(t *rapid.T) {
		var sums []money.Sum
		exact := new(big.Rat)
		currency := rapid.SampledFrom([]money.Currency{"USD", "JPY", "KWD"}).Draw(t, "currency")
		scale := map[money.Currency]int64{"USD": 100, "JPY": 1, "KWD": 1000}[currency]
		for range rapid.IntRange(1, 12).Draw(t, "lines") {
			units := rapid.Int64Range(-1000, 10_000_000).Draw(t, "units")
			text := rapid.StringMatching(`[0-9]{1,3}\.[0-9]{1,12}`).Draw(t, "price")
			p, err := money.ParsePrice(text)
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, money.Times(units, p, currency))
			r, _ := new(big.Rat).SetString(text)
			exact.Add(exact, r.Mul(r, new(big.Rat).SetInt64(units*scale)))
		}
		total, parts, err := money.Split(sums)
		if err != nil {
			t.Fatal(err)
		}
		if off := new(big.Rat).Sub(new(big.Rat).SetInt64(total), exact); off.Cmp(big.NewRat(-1, 2)) <= 0 || off.Cmp(big.NewRat(1, 2)) > 0 {
			t.Fatalf("total %d of %s is not half up", total, exact.RatString())
		}
		var sum int64
		for i, part := range parts {
			sum += part
			off := money.Whole(part).Minus(sums[i])
			if off.Plus(money.Whole(1)).Sign() <= 0 || off.Minus(money.Whole(1)).Sign() >= 0 {
				t.Fatalf("part %d of %s is a whole unit off", part, sums[i])
			}
			if off.Sign() > 0 {
				spares++
			}
		}
		if sum != total {
			t.Fatalf("parts %v add up to %d, want %d", parts, sum, total)
		}
		again, same, _ := money.Split(sums)
		for i := range same {
			if again != total || same[i] != parts[i] {
				t.Fatalf("the same lines gave %v and %v", parts, same)
			}
		}
	})
	if spares == 0 {
		t.Error("no line ever got a spare unit: the property was not tried")
	}
}

// TestTooMuch guarantees that what does not fit is an error and never another number.
func TestTooMuch(t *testing.T) {
	t.Parallel()

	s := money.Times(1<<53-1, price(t, "999999999999"), "USD")
	if _, err := s.Round(); !errors.Is(err, money.ErrMoney) {
		t.Errorf("round of %s: %v", s, err)
	}
	if _, _, err := money.Split([]money.Sum{s}); !errors.Is(err, money.ErrMoney) {
		t.Errorf("split of %s: %v", s, err)
	}
}

// TestCurrency guarantees what a code is, and how many digits its minor unit has.
func TestCurrency(t *testing.T) {
	t.Parallel()

	for code, exponent := range map[money.Currency]int{"USD": 2, "EUR": 2, "TRY": 2, "JPY": 0, "KRW": 0, "KWD": 3, "CLF": 4} {
		if err := code.Validate(); err != nil || code.Exponent() != exponent {
			t.Errorf("%s has %d digits %v, want %d", code, code.Exponent(), err, exponent)
		}
	}
	for _, code := range []money.Currency{"", "usd", "US", "USDX", "U$D"} {
		if err := code.Validate(); !errors.Is(err, money.ErrMoney) {
			t.Errorf("%q is taken: %v", code, err)
		}
	}
	for minor, want := range map[int64]string{0: "USD 0.00", 5: "USD 0.05", -5: "USD -0.05", 123: "USD 1.23", -1 << 63: "USD -92233720368547758.08"} {
		if got := (money.Amount{Minor: minor, Currency: "USD"}).String(); got != want {
			t.Errorf("%d is %s, want %s", minor, got, want)
		}
	}
}

// FuzzParsePrice guarantees that a price that is taken has no sign, is printed as it
// was written, and times one is what it says.
func FuzzParsePrice(f *testing.F) {
	for _, s := range []string{"0.00001", "-1", "+1", "1e3", "", ".", "1.", ".5", "0", "999999999999.999999999999", "1234567890123", "NaN", "1/3", "0x1", "1_0", " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := money.ParsePrice(s)
		if err != nil {
			if !errors.Is(err, money.ErrMoney) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if p.String() != s {
			t.Fatalf("%q became %q", s, p)
		}
		want, ok := new(big.Rat).SetString(s)
		one := money.Times(1, p, "JPY")
		if !ok || one.Sign() < 0 || one.String() != want.RatString() {
			t.Fatalf("%q is %s", s, one)
		}
	})
}
