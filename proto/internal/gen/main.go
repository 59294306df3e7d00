// Gen writes the Go of .proto files: messages and the stubs of services.
//
// It compiles the files by itself and hands them to the two plugins that
// go.mod pins as tools, so that nothing but Go is needed. The output depends on
// the files and those versions alone.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(context.Background(), "..", ".", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// plugins write messages and services.
var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

// run compiles files, which are named from root, and writes their Go to dir.
func run(ctx context.Context, root, dir string, files []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return err
	}
	request := request(compiled, files)
	for _, plugin := range plugins {
		if err := generate(ctx, plugin, request, dir); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// request is what protoc would tell a plugin: the files and all that they
// import, imports first.
func request(compiled linker.Files, files []string) *pluginpb.CodeGeneratorRequest {
	var all []*descriptorpb.FileDescriptorProto
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		all = append(all, protoutil.ProtoFromFileDescriptor(f))
	}
	for _, f := range compiled {
		add(f)
	}
	return &pluginpb.CodeGeneratorRequest{FileToGenerate: files, ProtoFile: all}
}

// generate runs one plugin and writes its files to dir, whatever folder their
// names have.
func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest, dir string) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out.Bytes(), &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("refused: %s", response.GetError())
	}
	for _, f := range response.GetFile() {
		if err := os.WriteFile(filepath.Join(dir, path.Base(f.GetName())), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
