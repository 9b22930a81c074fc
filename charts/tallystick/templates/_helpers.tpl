{{/* Name of all objects: the name of the release, unless fullnameOverride or nameOverride is set. */}}
{{- define "tallystick.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of the operator's pods. NetworkPolicies of brokers select the first one: see OPERATOR_LABELS. */}}
{{- define "tallystick.selector" -}}
app.kubernetes.io/name: tallystick-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tallystick.labels" -}}
{{ include "tallystick.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tallystick.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tallystick.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Reference of an image: registry/repository@digest, or registry/repository:tag without a digest. */}}
{{- define "tallystick.image" -}}
{{- $global := .root.Values.global | default dict -}}
{{- $registry := .image.registry | default (get $global "imageRegistry") | default "" | trimSuffix "/" -}}
{{- $name := .image.repository -}}
{{- if $registry -}}
{{- $name = printf "%s/%s" $registry .image.repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Secrets with registry credentials, as a JSON list: those of the chart and of `global`, each once. Strings are names. */}}
{{- define "tallystick.pullSecrets" -}}
{{- $found := list -}}
{{- $global := .Values.global | default dict -}}
{{- range concat (.Values.imagePullSecrets | default list) (get $global "imagePullSecrets" | default list) -}}
{{- $found = append $found (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}

{{- define "tallystick.operatorImage" -}}
{{- include "tallystick.image" (dict "root" . "image" .Values.image.operator) -}}
{{- end -}}

{{- define "tallystick.nodeImage" -}}
{{- include "tallystick.image" (dict "root" . "image" .Values.image.node) -}}
{{- end -}}

{{- define "tallystick.jobsImage" -}}
{{- include "tallystick.image" (dict "root" . "image" .Values.image.jobs) -}}
{{- end -}}

{{/* Priority class of the pods of StoreJobs: created by the chart, an existing one, or none. */}}
{{- define "tallystick.jobsPriorityClass" -}}
{{- with .Values.jobs.priorityClass -}}
{{- if .name -}}
{{- .name -}}
{{- else if .create -}}
{{- printf "%s-jobs" (include "tallystick.fullname" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Watched namespaces as a JSON list; empty with clusterWide. */}}
{{- define "tallystick.namespaces" -}}
{{- if .Values.clusterWide -}}
{{- if .Values.watchNamespaces -}}
{{- fail "clusterWide watches all namespaces: watchNamespaces must be empty" -}}
{{- end -}}
[]
{{- else -}}
{{- if .Values.secretNamespaces -}}
{{- fail "secretNamespaces requires clusterWide: otherwise the Role in each watched namespace already has this permission" -}}
{{- end -}}
{{- .Values.watchNamespaces | default (list .Release.Namespace) | uniq | toJson -}}
{{- end -}}
{{- end -}}

{{/* Environment of the operator, and of the hook before an uninstallation. */}}
{{- define "tallystick.environment" -}}
- {name: TALLYSTICK_NODE_IMAGE, value: {{ include "tallystick.nodeImage" . | quote }}}
- {name: TALLYSTICK_JOBS_IMAGE, value: {{ include "tallystick.jobsImage" . | quote }}}
- {name: JOBS_PRIORITY_CLASS, value: {{ include "tallystick.jobsPriorityClass" . | quote }}}
- {name: WATCH_NAMESPACES, value: {{ include "tallystick.namespaces" . | fromJsonArray | join "," | quote }}}
- {name: LEASE_NAME, value: {{ include "tallystick.fullname" . }}}
- {name: HTTP_PORT, value: "8081"}
- {name: LOG_LEVEL, value: {{ .Values.logLevel }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Security context for the restricted Pod Security Standard. */}}
{{- define "tallystick.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tallystick.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* "true" if the chart renders the definition `name`: see crds.install in values.yaml. */}}
{{- define "tallystick.rendersCrd" -}}
{{- $mode := .root.Values.crds.install -}}
{{- if eq $mode "always" -}}
true
{{- else if eq $mode "auto" -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name -}}
{{- if not $there -}}
true
{{- else -}}
{{- $marks := $there.metadata.annotations | default dict -}}
{{- $release := get $marks "meta.helm.sh/release-name" -}}
{{- $namespace := get $marks "meta.helm.sh/release-namespace" -}}
{{- if and (eq $release .root.Release.Name) (eq $namespace .root.Release.Namespace) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
