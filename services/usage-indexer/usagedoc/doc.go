// Package usagedoc knows the document that one event of usage.v1 becomes: its
// fields, its text, the day it belongs to, and which events are too old or too
// new to be kept. It does not know where documents are stored.
package usagedoc
