package proof

import (
	"bufio"
	"context"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
)

// TestAnswersOfRedis guarantees how the words of an answer are read.
func TestAnswersOfRedis(t *testing.T) {
	t.Parallel()

	tests := []struct {
		answer string
		want   []string
		fails  bool
	}{
		{answer: "+OK\r\n", want: []string{"OK"}},
		{answer: ":7\r\n", want: []string{"7"}},
		{answer: "$-1\r\n"},
		{answer: "$4\r\na\r\nb\r\n", want: []string{"a\r\nb"}},
		{answer: "*2\r\n$1\r\n1\r\n:2\r\n", want: []string{"1", "2"}},
		{answer: "*0\r\n"},
		{answer: "-NOAUTH log in first\r\n", fails: true},
		{answer: "$9999999999\r\n", fails: true},
		{answer: "$4\r\nab", fails: true},
		{answer: "\r\n", fails: true},
		{answer: "", fails: true},
	}
	for _, tt := range tests {
		c := redis{r: bufio.NewReader(strings.NewReader(tt.answer))}
		got, err := c.read()
		if (err != nil) != tt.fails || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: %q, %v; want %q", tt.answer, got, err, tt.want)
		}
	}
}

// TestLoginAtRedis guarantees that a connection logs in and selects the database
// that the URL names, and that a refusal is an error.
func TestLoginAtRedis(t *testing.T) {
	t.Parallel()

	for answer, fails := range map[string]bool{"+OK\r\n": false, "-WRONGPASS\r\n": true} {
		var config net.ListenConfig
		l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				heard <- err.Error()
				return
			}
			_, _ = io.WriteString(conn, answer+answer)
			all, _ := io.ReadAll(conn)
			heard <- string(all)
		}()
		c, err := dialRedis(context.WithoutCancel(t.Context()), "redis://ada:secret@"+l.Addr().String()+"/3")
		if (err != nil) != fails {
			t.Errorf("%q: err = %v", answer, err)
		}
		if err == nil {
			c.close()
			if got := <-heard; !strings.Contains(got, "AUTH\r\n$3\r\nada\r\n$6\r\nsecret") || !strings.Contains(got, "SELECT\r\n$1\r\n3") {
				t.Errorf("it was told %q", got)
			}
		}
		_ = l.Close()
	}
}
