# A velero user's week. With berth the same lines do the same: alias velero=berth
# tests/cli/week.rs runs them with both, and writes docs/week.md.

## Monday: a backup, and what it stored
# `--wait` shows what happens until the backup has ended. `berth-ca.crt` is the authority that signed
# the certificate of berth's downloads, which a location that is a folder needs.
velero backup-location get
velero backup create monday --include-namespaces shop --wait
velero backup get
velero backup describe monday --details --cacert berth-ca.crt
velero backup download monday --cacert berth-ca.crt
tar --list --file monday-data.tar.gz | sort

## Tuesday: a backup fails
# A namespace is mistyped.
velero backup create tuesday --include-namespaces shop,shpo --labels team=web
velero backup get --selector team=web
velero backup describe tuesday --cacert berth-ca.crt
velero backup logs tuesday --cacert berth-ca.crt | grep level=error
velero backup create again --include-namespaces shop,shpo --wait
velero backup describe teusday
velero backup create other --storage-location offsiet

## Wednesday: a schedule
velero schedule create daily --schedule "0 1 * * *" --include-namespaces shop --ttl 168h
velero schedule get
velero backup create wednesday --from-schedule daily
velero backup get
velero schedule pause daily
velero schedule get
velero schedule unpause daily
velero schedule describe daily
velero schedule create wrong --schedule "0 1 * *"

## Thursday: another location
velero backup-location create offsite --provider berth.dev/filesystem --bucket shop --config path=$HOME/offsite
velero backup-location get
velero backup create thursday --include-namespaces shop --storage-location offsite
velero backup get thursday
velero backup-location delete offsite --confirm
velero backup-location get

## Friday: old things go
velero backup delete tuesday again --confirm
velero backup get
velero schedule delete daily --confirm
velero schedule get
velero backup delete --all --confirm
velero backup get
