{{/* Name of everything here: the release's, unless it is told another. */}}
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

{{/* Labels of the operator's pods. By the first one brokers let them in: operator/layout.py has the same. */}}
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

{{- define "tallystick.operatorImage" -}}
{{- printf "%s:%s" .Values.image.operator.repository (default .Chart.AppVersion .Values.image.operator.tag) -}}
{{- end -}}

{{- define "tallystick.nodeImage" -}}
{{- printf "%s:%s" .Values.image.node.repository (default .Chart.AppVersion .Values.image.node.tag) -}}
{{- end -}}

{{- define "tallystick.jobsImage" -}}
{{- printf "%s:%s" .Values.image.jobs.repository (default .Chart.AppVersion .Values.image.jobs.tag) -}}
{{- end -}}

{{/* The class that pods of StoreJobs run in: the chart's own, one that is there, or none. */}}
{{- define "tallystick.jobsPriorityClass" -}}
{{- with .Values.jobs.priorityClass -}}
{{- if .name -}}
{{- .name -}}
{{- else if .create -}}
{{- printf "%s-jobs" (include "tallystick.fullname" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Namespaces that are watched, as a JSON list; empty with clusterWide. */}}
{{- define "tallystick.namespaces" -}}
{{- if .Values.clusterWide -}}
{{- if .Values.watchNamespaces -}}
{{- fail "clusterWide watches all namespaces: leave watchNamespaces empty" -}}
{{- end -}}
[]
{{- else -}}
{{- if .Values.secretNamespaces -}}
{{- fail "secretNamespaces is for clusterWide: the Role in each watched namespace has these rights" -}}
{{- end -}}
{{- .Values.watchNamespaces | default (list .Release.Namespace) | uniq | toJson -}}
{{- end -}}
{{- end -}}

{{/* Pods here run under the restricted profile. */}}
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

{{/* "true" if the definition `name` is to be rendered: see crds.install in values.yaml. */}}
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
