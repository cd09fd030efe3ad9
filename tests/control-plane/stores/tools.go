//go:build tools

// Package tools names the programs that this module pins.
package tools

import (
	_ "github.com/fsouza/fake-gcs-server"
	_ "github.com/versity/versitygw/cmd/versitygw"
)
