{{/* Permissions of the operator in watched namespaces: no wildcard, no exec. Server-side apply requires patch, and
create if the object does not exist. */}}
{{- define "tallystick.rules" -}}
- apiGroups: [tallystick.dev]
  resources: [brokerclusters, topics, consumergroups, users]
  verbs: [get, list, watch, patch]
- apiGroups: [tallystick.dev]
  resources: [brokernodes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [tallystick.dev] # created by schedules; deleted after ttlSecondsAfterFinished
  resources: [storejobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [tallystick.dev] # created and deleted by ScheduledBackups; patch is for the finalizer
  resources: [backups]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [tallystick.dev]
  resources: [scheduledbackups]
  verbs: [get, list, watch]
- apiGroups: [batch] # one for each group of a Backup
  resources: [jobs]
  verbs: [get, list, create, delete]
- apiGroups: [tallystick.dev]
  resources: [brokerclusters/status, brokernodes/status, topics/status, consumergroups/status, users/status, storejobs/status, backups/status, scheduledbackups/status]
  verbs: [get, patch]
- apiGroups: [tallystick.dev] # to set them as owners with blockOwnerDeletion
  resources: [brokerclusters/finalizers, brokernodes/finalizers, storejobs/finalizers, backups/finalizers, users/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""] # create is for StoreJobs; StatefulSets create the pods of brokers
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""] # ready pods are evicted, so that disruption budgets count all evictions together
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [coordination.k8s.io] # one operator for each namespace
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [operator.tallystick.dev]
  verbs: [get, update]
{{- end -}}

{{/* The operator creates Secrets with tokens. For TLS and Users it reads and changes Secrets that it knows by name: those
it has created, and those that a resource names. It cannot list them. Without rbac.readSecrets it only creates them. */}}
{{- define "tallystick.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create{{ if .Values.rbac.readSecrets }}, get, patch{{ end }}]
{{- end -}}
