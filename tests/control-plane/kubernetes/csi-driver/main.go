// Command csi-driver is a CSI driver for tests: a volume is a directory of this machine, a snapshot
// is a copy of one, and so is a clone.
//
// It has no part on nodes, since nobody mounts here: where a volume's data is, its
// PersistentVolume says as the attribute berth.test/folder. SIGTERM or SIGINT ends it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// folderAttribute is how a PersistentVolume tells where its data is.
	folderAttribute = "berth.test/folder"
	// zonalParameter of a StorageClass: a volume can be reached from one segment of the topology only.
	zonalParameter = "zonal"
	defaultSize    = 1 << 20
)

func main() {
	driver := &driver{}
	socket := flag.String("socket", "", "where to listen: a path")
	flag.StringVar(&driver.name, "name", "csi.berth.test", "what StorageClasses call it")
	flag.StringVar(&driver.folder, "folder", "", "where volumes and snapshots are kept")
	flag.Parse()
	if *socket == "" || driver.folder == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := driver.run(*socket); err != nil {
		log.Fatal(err)
	}
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer

	name, folder string
	// Requests for the same thing may come twice at the same time.
	lock sync.Mutex
}

func (d *driver) run(socket string) error {
	for _, kind := range []kind{volumes, snapshots, groups} {
		if err := os.MkdirAll(filepath.Join(d.folder, string(kind)), 0o755); err != nil {
			return err
		}
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterGroupControllerServer(server, d)

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	go func() {
		<-stop.Done()
		server.GracefulStop()
	}()
	return server.Serve(listener)
}

func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	if !strings.HasSuffix(info.FullMethod, "/Probe") {
		log.Printf("%s %v: %v", filepath.Base(info.FullMethod), request, err)
	}
	return answer, err
}

// What is kept: a folder of this name holds one folder for each.
type kind string

const (
	volumes   kind = "volumes"
	snapshots kind = "snapshots"
	// An empty folder for each; the names of their snapshots begin with theirs.
	groups kind = "groups"
)

// at is where one is kept: `data`, and `size` as text.
func (d *driver) at(kind kind, id string) (string, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || id == "." || id == ".." {
		return "", status.Errorf(codes.InvalidArgument, "%q cannot be a name", id)
	}
	return filepath.Join(d.folder, string(kind), id), nil
}

func (d *driver) find(kind kind, id string) (string, error) {
	at, err := d.at(kind, id)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(at); err != nil {
		return "", status.Errorf(codes.NotFound, "no %s among the %s", id, kind)
	}
	return at, nil
}

func size(at string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(at, "size"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// make puts a copy of source, or something empty, at a place where nothing is; wholly, or not at all.
func (d *driver) make(ctx context.Context, at, source string, bytes int64) error {
	made, err := os.MkdirTemp(d.folder, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	data := filepath.Join(made, "data")
	if source == "" {
		if err := os.Mkdir(data, 0o777); err != nil {
			return err
		}
		// The umask may have taken something off.
		if err := os.Chmod(data, 0o777); err != nil {
			return err
		}
	} else {
		copying := exec.CommandContext(ctx, "cp", "--archive", "--reflink=auto", filepath.Join(source, "data"), data)
		if said, err := copying.CombinedOutput(); err != nil {
			return fmt.Errorf("cp: %w: %s", err, said)
		}
	}
	if err := os.WriteFile(filepath.Join(made, "size"), strconv.AppendInt(nil, bytes, 10), 0o644); err != nil {
		return err
	}
	return os.Rename(made, at)
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{}
	for _, which := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		service := &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: which}}
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: service})
	}
	return answer, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, which := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		rpc := &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: which}}
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: rpc})
	}
	return answer, nil
}

func (d *driver) CreateVolume(
	ctx context.Context, request *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	for _, capability := range request.GetVolumeCapabilities() {
		if capability.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "a directory is no block device")
		}
	}
	at, err := d.at(volumes, request.GetName())
	if err != nil {
		return nil, err
	}
	source := ""
	if from := request.GetVolumeContentSource().GetSnapshot(); from != nil {
		source, err = d.find(snapshots, from.GetSnapshotId())
	} else if from := request.GetVolumeContentSource().GetVolume(); from != nil {
		source, err = d.find(volumes, from.GetVolumeId())
	}
	if err != nil {
		return nil, err
	}
	bytes := max(request.GetCapacityRange().GetRequiredBytes(), defaultSize)
	if known, err := size(at); err == nil {
		bytes = known
	} else if err := d.make(ctx, at, source, bytes); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}

	made := &csi.Volume{
		VolumeId:      request.GetName(),
		CapacityBytes: bytes,
		VolumeContext: map[string]string{folderAttribute: filepath.Join(at, "data")},
		ContentSource: request.GetVolumeContentSource(),
	}
	preferred := request.GetAccessibilityRequirements().GetPreferred()
	if request.GetParameters()[zonalParameter] == "true" && len(preferred) > 0 {
		made.AccessibleTopology = preferred[:1]
	}
	return &csi.CreateVolumeResponse{Volume: made}, nil
}

func (d *driver) DeleteVolume(
	_ context.Context, request *csi.DeleteVolumeRequest,
) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, d.remove(volumes, request.GetVolumeId())
}

func (d *driver) CreateSnapshot(
	ctx context.Context, request *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	made, err := d.snapshot(ctx, request.GetName(), request.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: made}, nil
}

// snapshot makes the snapshot of a volume, or finds it.
func (d *driver) snapshot(ctx context.Context, name, volume string) (*csi.Snapshot, error) {
	source, err := d.find(volumes, volume)
	if err != nil {
		return nil, err
	}
	bytes, err := size(source)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	at, err := d.at(snapshots, name)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(at); err != nil {
		if err := d.make(ctx, at, source, bytes); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	// Its size is written once.
	written, err := os.Stat(filepath.Join(at, "size"))
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.Snapshot{
		SnapshotId:     name,
		SourceVolumeId: volume,
		SizeBytes:      bytes,
		CreationTime:   timestamppb.New(written.ModTime()),
		ReadyToUse:     true,
	}, nil
}

func (d *driver) DeleteSnapshot(
	_ context.Context, request *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	return &csi.DeleteSnapshotResponse{}, d.remove(snapshots, request.GetSnapshotId())
}

func (d *driver) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	which := csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	rpc := &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{Type: which}}
	return &csi.GroupControllerGetCapabilitiesResponse{
		Capabilities: []*csi.GroupControllerServiceCapability{{Type: rpc}},
	}, nil
}

func (d *driver) CreateVolumeGroupSnapshot(
	ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	at, err := d.at(groups, request.GetName())
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	group, err := d.group(request.GetName())
	if err != nil {
		return nil, err
	}
	for _, volume := range request.GetSourceVolumeIds() {
		made, err := d.snapshot(ctx, request.GetName()+"."+volume, volume)
		if err != nil {
			return nil, err
		}
		made.GroupSnapshotId = request.GetName()
		group.Snapshots = append(group.Snapshots, made)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: group}, nil
}

func (d *driver) GetVolumeGroupSnapshot(
	_ context.Context, request *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	group, err := d.group(request.GetGroupSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: group}, nil
}

// group is one that is there, without its snapshots.
func (d *driver) group(id string) (*csi.VolumeGroupSnapshot, error) {
	at, err := d.find(groups, id)
	if err != nil {
		return nil, err
	}
	made, err := os.Stat(at)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.VolumeGroupSnapshot{
		GroupSnapshotId: id, CreationTime: timestamppb.New(made.ModTime()), ReadyToUse: true,
	}, nil
}

func (d *driver) DeleteVolumeGroupSnapshot(
	_ context.Context, request *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	for _, snapshot := range request.GetSnapshotIds() {
		if err := d.remove(snapshots, snapshot); err != nil {
			return nil, err
		}
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, d.remove(groups, request.GetGroupSnapshotId())
}

func (d *driver) remove(kind kind, id string) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	at, err := d.at(kind, id)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(at); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}
