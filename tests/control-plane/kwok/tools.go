//go:build tools

// Package tools names the program that this module pins.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
