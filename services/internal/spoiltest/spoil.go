// Package spoiltest finds who looks at memory that was given back to be used
// again: it overwrites all of it.
package spoiltest

import (
	"reflect"
	"unsafe"
)

// Garbage is what texts are overwritten with.
const Garbage = "\xffspoilt"

// Spoil overwrites what is in the slices of the struct that v points to, up to
// their capacity, and in those of the structs in it: texts and numbers with
// garbage, pointers with nil. Under the race detector whoever reads there at that
// time is found, else who reads later. It must not be called of memory that
// anybody may use.
func Spoil(v any) { kept(reflect.ValueOf(v).Elem()) }

// kept spoils what a struct keeps, and leaves the struct itself as it is.
func kept(s reflect.Value) {
	for _, f := range fields(s) {
		if f.Kind() == reflect.Struct {
			kept(f)
		}
		if f.Kind() == reflect.Slice {
			all := f.Slice(0, f.Cap())
			for i := range all.Len() {
				overwrite(all.Index(i))
			}
		}
	}
}

func overwrite(v reflect.Value) {
	switch kind := v.Kind(); {
	case kind == reflect.String:
		v.SetString(Garbage)
	case kind == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(-0x55)
	case v.CanUint():
		v.SetUint(0x55)
	case kind == reflect.Array:
		for i := range v.Len() {
			overwrite(v.Index(i))
		}
	case kind == reflect.Struct:
		for _, f := range fields(v) {
			overwrite(f)
		}
	default:
		v.SetZero()
	}
}

// fields are those of a struct, unexported ones too, to be written.
func fields(s reflect.Value) []reflect.Value {
	all := make([]reflect.Value, s.NumField())
	for i := range all {
		f := s.Field(i)
		all[i] = reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
	}
	return all
}
