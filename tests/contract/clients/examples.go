// Decode and encode examples with generated types: `examples FILE`, a JSON array of {"schema": …, "value": …}.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

type example struct {
	Schema string          `json:"schema"`
	Value  json.RawMessage `json:"value"`
}

func main() {
	content, err := os.ReadFile(os.Args[1])
	check(err)
	var examples []example
	check(json.Unmarshal(content, &examples))
	encoded := make([]any, 0, len(examples))
	for _, each := range examples {
		decoded := newModel[each.Schema]()
		if err := json.Unmarshal(each.Value, decoded); err != nil {
			check(fmt.Errorf("%s: %w", each.Schema, err))
		}
		encoded = append(encoded, decoded)
	}
	check(json.NewEncoder(os.Stdout).Encode(encoded))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
