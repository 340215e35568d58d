// Command modproxy packs modules as Go's module proxy does, into a folder that GOPROXY=file://… can name.
//
//	modproxy PROXY VERSION MODULE…
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: modproxy PROXY VERSION MODULE…")
	}
	for _, folder := range os.Args[3:] {
		if err := pack(os.Args[1], os.Args[2], folder); err != nil {
			log.Fatalf("%s: %v", folder, err)
		}
	}
}

func pack(proxy, version, folder string) error {
	definition, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return err
	}
	path := modfile.ModulePath(definition)
	versions := filepath.Join(proxy, path, "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"list":            version + "\n",
		version + ".info": fmt.Sprintf("{%q: %q}\n", "Version", version),
		version + ".mod":  string(definition),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	packed := &bytes.Buffer{}
	if err := zip.CreateFromDir(packed, module.Version{Path: path, Version: version}, folder); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(versions, version+".zip"), packed.Bytes(), 0o644)
}
