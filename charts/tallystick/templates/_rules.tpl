{{/* What the operator may do where it looks after clusters. Nothing is run in pods, no wildcard. Applying an object
(server-side) needs patch, and create if it is not there. */}}
{{- define "tallystick.rules" -}}
- apiGroups: [tallystick.dev]
  resources: [brokerclusters, topics, consumergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [tallystick.dev]
  resources: [brokernodes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [tallystick.dev] # made by a schedule's time; deleted when their time after the end is over
  resources: [storejobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [tallystick.dev]
  resources: [brokerclusters/status, brokernodes/status, topics/status, consumergroups/status, storejobs/status]
  verbs: [get, patch]
- apiGroups: [tallystick.dev] # to be named as the owner that objects go with
  resources: [brokerclusters/finalizers, brokernodes/finalizers, storejobs/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""] # made: those of StoreJobs, without a token of any account; brokers' are their StatefulSets'
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""] # ready pods are stopped so: disruption budgets count the operator's steps and everybody else's together
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
{{- end -}}

{{/* The token of each cluster's nodes is written once. What Secrets there are, and what is in them, it cannot see. */}}
{{- define "tallystick.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end -}}
